"""Retrieval client that sends the best passage in the prompt and all retrieved passages as reference texts.

    python examples/rag_client.py URL MODEL FOLDER "How is a draft cut to its budget?" [--engine vllm | sglang]

bm25s ranks the paragraphs of a folder of texts.  specplug drafts the answer from the references, which changes the
answer's speed, never its text.  The server is vLLM's or SGLang's own, started with specplug (see docs/rag.md); the
client does not need specplug.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FIELDS = {"vllm": "vllm_xargs", "sglang": "custom_params"}
MOST = 8
"""Texts that a request may bring as references."""


class Passages:
    """Texts with a bm25s index."""

    def __init__(self, texts: Sequence[str]) -> None:
        import bm25s  # which the examples of vector stores do not need

        self._tokenize = bm25s.tokenize
        self._texts = list(texts)
        self._index = bm25s.BM25()
        self._index.index(self._tokenize(self._texts, show_progress=False), show_progress=False)

    def find(self, question: str, count: int) -> list[str]:
        """Return up to `count` texts, the best first, of those that share a word with the question."""
        words = self._tokenize(question, show_progress=False)
        found, scores = self._index.retrieve(words, k=min(count, len(self._texts)), show_progress=False)
        return [self._texts[place] for place, score in zip(found[0], scores[0], strict=True) if score > 0]


def read(folder: Path) -> list[str]:
    """Return the paragraphs of the texts in a folder, except very short ones."""
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in (".md", ".py", ".rst", ".txt")]
    parts = [part.strip() for path in files for part in path.read_text(errors="replace").split("\n\n")]
    return [part for part in parts if len(part) >= 40] or sys.exit(f"no texts (.md, .py, .rst, .txt) in {folder}")


def references(engine: str, texts: Sequence[str], extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a request's `extra_body`, or `extra`, with reference texts, as a list of the first that it may bring."""
    given = extra or {}
    field = FIELDS[engine]
    return {**given, field: {**given.get(field, {}), "specplug_references": list(texts)[:MOST]}}


def counts(url: str) -> tuple[int, int, int]:
    """Return a server's tokens and steps so far, and the tokens drafted from references; zeros if it does not tell."""
    try:
        with urllib.request.urlopen(f"{url}/specplug/status", timeout=60) as answer:
            found = json.load(answer)["engines"][0]["workers"][0]["metrics"]
    except urllib.error.HTTPError:
        return 0, 0, 0
    total, sources = found["total"], found["by_source"]
    drafted = sum(one["accepted"] for name, one in sources.items() if name.endswith("/reference"))
    return total["emitted"] - total["after_stop"], total["target_steps"], drafted


def report(url: str, before: Sequence[int], answer: str, found: Sequence[str]) -> None:
    """Print an answer and what the server counted since `before`, when nobody else used it."""
    gained = [now - then for now, then in zip(counts(url), before, strict=True)]
    print(answer, f"{len(found)} passages found; {counted(gained)}", sep="\n---\n")


def counted(counts: Sequence[int]) -> str:
    """Word what `counts` returns."""
    tokens, steps, drafted = counts
    return f"{tokens} tokens in {steps} steps, {drafted} of them drafted from references"


def options(doc: str, *names: str) -> argparse.Namespace:
    """Read the command line of a retrieval example: `names`, and what the server and the prompt are."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in names:
        parser.add_argument(name)
    parser.add_argument("--engine", choices=FIELDS, default="vllm", help="what the server is (default: %(default)s)")
    parser.add_argument("--template", default="{passage}\n\nQuestion: {question}\nAnswer:", help="of the prompt")
    return parser.parse_args()


def main() -> None:
    """Retrieve passages, send the request, and print the answer and the number of steps."""
    from openai import OpenAI

    given = options(__doc__ or "", "url", "model", "folder", "question")
    found = Passages(read(Path(given.folder))).find(given.question, 4) or sys.exit("nothing found")
    prompt = given.template.format(passage=found[0], question=given.question)
    client, before = OpenAI(base_url=f"{given.url}/v1", api_key="none"), counts(given.url)
    extra = references(given.engine, found)
    answer = client.completions.create(
        model=given.model, prompt=prompt, max_tokens=200, temperature=0, extra_body=extra
    )
    report(given.url, before, answer.choices[0].text, found)


if __name__ == "__main__":
    main()
