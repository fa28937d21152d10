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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bm25s

FIELDS = {"vllm": "vllm_xargs", "sglang": "custom_params"}


class Passages:
    """Texts with a bm25s index."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = list(texts)
        self._index = bm25s.BM25()
        self._index.index(bm25s.tokenize(self._texts, show_progress=False), show_progress=False)

    def find(self, question: str, count: int) -> list[str]:
        """Return up to `count` texts, the best first, of those that share a word with the question."""
        words = bm25s.tokenize(question, show_progress=False)
        found, scores = self._index.retrieve(words, k=min(count, len(self._texts)), show_progress=False)
        return [self._texts[place] for place, score in zip(found[0], scores[0], strict=True) if score > 0]


def read(folder: Path) -> list[str]:
    """Return the paragraphs of the texts in a folder, except very short ones."""
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in (".md", ".py", ".rst", ".txt")]
    parts = [part.strip() for path in files for part in path.read_text(errors="replace").split("\n\n")]
    return [part for part in parts if len(part) >= 40] or sys.exit(f"no texts (.md, .py, .rst, .txt) in {folder}")


def references(engine: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return the `extra_body` of a request with reference texts, always as a list."""
    return {FIELDS[engine]: {"specplug_references": list(texts)}}


def counts(url: str) -> tuple[int, int]:
    """Return the numbers of tokens and steps of the server so far; zeros if it does not report them."""
    try:
        with urllib.request.urlopen(f"{url}/specplug/status", timeout=60) as answer:
            total = json.load(answer)["engines"][0]["workers"][0]["metrics"]["total"]
    except urllib.error.HTTPError:
        return 0, 0
    return total["emitted"] - total["after_stop"], total["target_steps"]


def main() -> None:
    """Retrieve passages, send the request, and print the answer and the number of steps."""
    from openai import OpenAI

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "model", "folder", "question"):
        parser.add_argument(name)
    parser.add_argument("--engine", choices=FIELDS, default="vllm", help="what the server is (default: %(default)s)")
    parser.add_argument("--template", default="{passage}\n\nQuestion: {question}\nAnswer:", help="of the prompt")
    options = parser.parse_args()
    found = Passages(read(Path(options.folder))).find(options.question, 4) or sys.exit("nothing found")
    prompt, extra = (
        options.template.format(passage=found[0], question=options.question),
        references(options.engine, found),
    )
    client, before = OpenAI(base_url=f"{options.url}/v1", api_key="none"), counts(options.url)
    answer = client.completions.create(
        model=options.model, prompt=prompt, max_tokens=200, temperature=0, extra_body=extra
    )
    tokens, steps = (now - then for now, then in zip(counts(options.url), before, strict=True))
    print(answer.choices[0].text, f"{len(found)} passages found; {tokens} tokens in {steps} steps", sep="\n---\n")


if __name__ == "__main__":
    main()
