"""Demo of retrieved texts as references, on a real vLLM or SGLang server: `make demo-rag`.

    .venv-vllm/bin/python examples/rag_demo.py vllm [--tasks 12] [--proposer ngram] [--draft-length 15] [--json]
    .venv-sglang/bin/python examples/rag_demo.py sglang

What happens:

1. `specplug corpus build` makes a store of all texts that there are to retrieve: from the documentation of Python's
   standard library on this machine, in the three situations of rag_tasks.py.
2. Three servers are started on the model that specplug ships, as by vllm_demo.py and sglang_demo.py: without
   speculation, with specplug, and with its proposer `retrieval` on the store.  None caches prompts or remembers
   responses.
3. bm25s retrieves for every question; the best text goes into the prompt.  The same prompt is sent in every arm, one
   request at a time: to the second server also with the retrieved texts as references, as by rag_client.py, and to the
   third also with the names of the retrieved documents.
4. The texts are compared; tokens per step and the share accepted are read from `/specplug/status`.

Exit code 1 if any text differs.  Takes two to three minutes on two CPU cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import demo_servers
import rag_client
import rag_tasks
import serving_demo
import sglang_demo
import sglang_stand_ins
import vllm_demo
from serving_demo import Arm

from specplug.tools.demo import model_path

LAUNCHES = {"vllm": vllm_demo.launches, "sglang": sglang_demo.launches}
PLAIN, ALONE, STORE = "no speculation", "specplug", "specplug, corpus store"
NOTE = (
    "records: the retrieved texts are records as JSON, which the prompt shows in another form. answers: they are "
    "earlier answers, about other records. quote: they are passages, the best of which stands in the prompt word for "
    "word, where specplug finds it without them. The store has all of them. 'Correct' is the model's doing, and the "
    "retriever's. The time is that of a model of 4 M parameters on this machine, HTTP included."
)


def main() -> None:
    """Start the servers, send the requests, print the results; exit with 1 if any text differs."""
    parser = serving_demo.parser(__doc__ or "")
    parser.add_argument("engine", choices=LAUNCHES, help="whose servers are started")
    parser.set_defaults(tasks=12)
    options = parser.parse_args()
    remarks = [sglang_stand_ins.REMARK] if options.engine == "sglang" and sglang_stand_ins.needed() else []
    serving_demo.remark(remarks)
    settings = {"proposer": options.proposer, "policy": options.policy, "options": serving_demo.FORGETFUL}
    questions = {name: rag_tasks.questions(name, options.tasks, options.seed) for name in rag_tasks.SITUATIONS}
    with tempfile.TemporaryDirectory() as folder:
        stored = {**settings, "proposer": "retrieval", "corpora": {"store": build(Path(folder), options.seed)}}
        launches = [LAUNCHES[options.engine](server, options.draft_length) for server in (settings, stored)]
        named = {PLAIN: launches[0][0], ALONE: launches[0][1], STORE: launches[1][1]}
        with demo_servers.servers(named) as started:
            rows = serving_demo.report(serving_demo.compare(arms(options.engine, *started), questions))
    found = {name: sum(one.is_found for one in requested) for name, requested in questions.items()}
    summary = {"engine": options.engine, "draft_length": options.draft_length, "specplug": settings, "remarks": remarks}
    serving_demo.finish({**summary, "found": found, "rows": rows}, NOTE, as_json=options.json)


def build(folder: Path, seed: int) -> str:
    """Build a store of the texts to retrieve, one corpus for each situation; return its path."""
    sources = [folder / f"{situation}.jsonl" for situation in rag_tasks.SITUATIONS]
    for source in sources:
        texts = rag_tasks.store(source.stem, seed)
        lines = [json.dumps({"name": rag_tasks.name(text), "text": text}) for text in texts]
        source.write_text("\n".join(lines))
    specplug = Path(sys.executable).with_name("specplug")
    command = [specplug, "corpus", "build", folder / "store", *sources, "--tokenizer", model_path("tiny"), "--json"]
    subprocess.run([*map(str, command)], check=True, stdout=subprocess.DEVNULL)
    return str(folder / "store")


def arms(engine: str, plain: Any, alone: Any, store: Any) -> list[Arm]:
    """Return the arms: the ways to send requests to the three servers."""

    def referring(question: rag_tasks.Question, _: str) -> dict[str, Any]:
        return rag_client.references(engine, question.references)

    def naming(question: rag_tasks.Question, _: str) -> dict[str, Any]:
        return {rag_client.FIELDS[engine]: {"specplug_documents": question.names}}

    return [
        Arm(PLAIN, plain),
        Arm(ALONE, alone),
        Arm("specplug, with references", alone, referring),
        Arm(STORE, store),
        Arm("corpus store, documents named", store, naming),
    ]


if __name__ == "__main__":
    main()
