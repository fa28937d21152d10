"""The page of what specplug patches in the engines: `python -m tests.patches` writes it from the tables of seams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import specplug_sglang.seams
import specplug_vllm.seams

PAGE = Path(__file__).resolve().parents[1] / "docs" / "patches.md"
ENGINES: dict[str, ModuleType] = {"vLLM": specplug_vllm.seams, "SGLang": specplug_sglang.seams}
PARTS: Mapping[str, Mapping[str, str]] = {
    "vLLM": {
        "config": "sees in the launch line whether specplug is on, checks its settings, and sizes CUDA graphs",
        "scheduler": "plans the length of each step's drafts, and learns what was accepted and where texts end",
        "v1": "drafts after each step of the V1 runner, and corrects its rejection sampler",
        "v2": "drafts inside the steps of the V2 runner",
        "engine drafts": "lets the policy choose how far vLLM's own drafter drafts",
        "extended v1": "continues the drafts of vLLM's own drafter by lookup (`hybrid`), V1",
        "extended v2": "the same, V2",
        "adaptive": "verifies more of one request's draft than of another's, V2",
        "verifier v1": "accepts by another verifier (setting `verifier`), V1",
        "verifier v2": "the same, V2; also decides rows with seeds",
        "recurrent": "keeps requests of recurrent models in an order that the V1 runner can verify",
        "thinking budgets": "counts draft tokens right where a request limits its reasoning, V1",
        "token logprobs v1": "gives log-probabilities of chosen tokens with drafts, too, V1",
        "token logprobs v2": "the same, V2",
        "nccl": "sends drafts between ranks",
        "timing": "times steps of several sizes before the server serves",
        "events": "tells proposers of new weights, sleep and waking up",
        "api": "reads specplug's request fields",
        "http": "answers mistakes in them with status 400, and reports predicted tokens",
        "status": "reads a server's status, and gives orders to it",
        "routes": "adds the routes below `/specplug`",
        "metrics": "adds specplug's metrics to `/metrics`",
        "streams": "parses streamed reasoning and tool calls token by token",
    },
    "SGLang": {
        "algorithm": "registers `--speculative-algorithm SPECPLUG`, and checks its arguments",
        "worker": "drafts and verifies in place of SGLang's own speculation, and finds where texts end",
        "engine drafts": "lets the policy choose how far SGLang's own drafter drafts; lookup can continue its drafts",
        "timing": "times steps of several sizes before the server serves",
        "events": "tells proposers of new weights, released memory and idle times",
        "api": "reads specplug's request fields",
        "http": "answers mistakes in them with status 400, and adds the routes below `/specplug`",
        "status": "reads a server's status, and gives orders to it",
        "metrics": "adds specplug's metrics to `/metrics`",
    },
}
"""What each part of an adapter does, by the part's name in the table of seams."""


def rows(engine: str) -> Iterator[str]:
    """Yield the rows of an engine's table: a part, what it does, what it patches, and what else it relies on."""
    seams = ENGINES[engine]
    for part, purpose in PARTS[engine].items():
        mine = [seam for seam in seams.SEAMS if part in seam.where]
        patched = dict.fromkeys(name for seam in mine for name in seam.patched)
        relied = sum(len(seam.holds) or 1 for seam in mine) - sum(len(seam.patched) for seam in mine)
        lost = f"off, with a warning: {seams.OPTIONAL[part]}" if part in seams.OPTIONAL else "the server does not start"
        yield f"| {purpose} | {', '.join(f'`{name}`' for name in patched)} | {relied} | {lost} |"


def render() -> str:
    """Return the page."""
    tables = {
        engine: "\n".join(["| specplug | patches | relies on | if one has moved |", "|---|---|---|---|", *rows(engine)])
        for engine in ENGINES
    }
    return _PAGE.format(**tables, versions=", ".join(str(seams.VERSIONS) for seams in ENGINES.values()))


_PAGE = """# What specplug patches in your engine

For {versions}. `python -m tests.patches` writes this page from the tables that the adapters check before they patch
anything: [vLLM's](../adapters/specplug_vllm/seams.py) and [SGLang's](../adapters/specplug_sglang/seams.py), which
also have modules, signatures and the versions of single symbols.

A *patched* function is replaced in the running process by one of specplug's that calls it; no file of the engine
changes. What a part *relies on* it calls, reads, or overrides in a class of its own: the column counts the symbols.

**A server without specplug's flag** has the patches of vLLM's configuration, of `init_speculator` and of
`WorkerWrapperBase.init_device`, or on SGLang those of [hooks.py](../adapters/specplug_sglang/hooks.py) and
`check_server_args`. They read the server's arguments and call the engine's function unchanged. All others come with the
flag, and each part's only if a server uses it.

## vLLM

{vLLM}

`reload_weights` of a runner and `load_weights` of its model are wrapped, too, once steps run.

## SGLang

{SGLang}

## Removal

Leave out the flag, and the server runs as without specplug. `pip uninstall specplug` removes the package, its command
and its entry points, and lists what it removes. What stays is `~/.cache/specplug`, with measured step costs, compiled
code and the models of demos, what Triton and Hugging Face keep in their caches, and the traces, corpus stores and
settings files where you put them.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
