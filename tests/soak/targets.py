"""The engines of a soak: how each is launched, with specplug and as the control, and how it is spoken to."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from specplug.tools.audit.probe import Probe
from specplug.tools.audit.server import Dialect, Sglang, Vllm
from tests.engines import plain
from tests.engines.launch import MODEL, Configuration
from tests.soak.traffic import Request
from tests.soak.truth import SAMPLING, Size

PLANTED = {"raises": "raised", "garbage": "malformed", "slow": "late"}
"""Faulty proposers, by their kind of fault."""

PROPOSERS = ("oracle", *PLANTED, "retrieval")
BLOCK = 32

VLLM_VARIABLES = {
    "VLLM_SERVER_DEV_MODE": "1",  # which has the route that empties the prefix cache
    # Else oneDNN keeps a kernel for each of the last 1,024 shapes of a batch, and vLLM's worker grows for an hour,
    # with specplug and without.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16",
}

FAULTY: dict[str, Any] = {"raises": {"every": 2}, "slow": {"seconds": 0.12, "every": 3}}
"""Options of proposers: `slow` takes longer than the deadline below."""


def settings(store: Path, mode: str) -> dict[str, Any]:
    """Return specplug's settings on every engine."""
    from tests.engines.suites.server import SETTINGS

    return {
        **SETTINGS,
        "mode": mode,
        "extra_proposers": list(PROPOSERS),
        "options": FAULTY,
        "faults": {"host_deadline_ms": 50.0, "max_consecutive": 2, "cooldown_steps": 4},
        "corpora": {"store": str(store), "poll_seconds": 0.2},
    }


@dataclass(frozen=True)
class Target:
    """One engine.

    Attributes:
        carrier: the field of a request that holds specplug's fields.
        flush: route that empties its prefix cache.
        size, shortest: of the known answers, and the fewest tokens that a greedy request asks for.
        together: requests in flight.
        cache: tokens of the key-value cache, fewer than eight long requests need, so that some are preempted.
        mode: of specplug; "off": nothing is drafted throughout.
    """

    name: str
    dialect: Dialect = field(default_factory=Vllm)
    carrier: str = "vllm_xargs"
    flush: str = "/reset_prefix_cache"
    size: Size = field(default_factory=Size)
    shortest: int = 4
    together: int = 12
    cache: int = 1536
    mode: Literal["on", "off"] = "on"

    def soaked(self, store: Path) -> Configuration:
        """Return how the server with specplug is launched."""
        launch = importlib.import_module("tests.engines.vllm.launch")
        return launch.configuration(
            "v2" if self.name == "vllm-v2" else "v1",
            settings(store, self.mode),
            in_process=False,
            endpoints=True,
            environment=VLLM_VARIABLES,
            block_size=BLOCK,
            num_gpu_blocks_override=self.cache // BLOCK,
            **self._vllm(),
        )

    def control(self) -> Configuration:
        """Return how the engine is launched without specplug, and with room for all; V1 is the control of V2, too."""
        launch = importlib.import_module("tests.engines.vllm.launch")
        return launch.configuration("v1", installed=False, in_process=True, **self._vllm())

    def _vllm(self) -> dict[str, Any]:
        return {
            "model": str(plain.FOLDER),
            "served_model_name": MODEL,
            "max_num_batched_tokens": 2048,
            "log_error_stack": False,
            "uvicorn_log_level": "warning",
        }

    def body(self, request: Request) -> dict[str, Any]:
        """Return the body of a request."""
        body = self.dialect.body(probe_of(request), MODEL)
        body |= {"stream": request.stream, "ignore_eos": request.prompt.ignores_end}
        if request.fields:
            body[self.carrier] = dict(request.fields)
        return body

    def read_event(self, event: Mapping[str, Any], before: tuple[int, ...]) -> tuple[tuple[int, ...], str | None]:
        """Return all tokens of a stream up to one of its events, and why it has finished, if it has."""
        for choice in event.get("choices", ())[:1]:
            return (*before, *(choice.get("token_ids") or ())), choice.get("finish_reason")
        return before, None

    def preemptions(self, metrics: str, log: str) -> int:
        """Return how often a request was preempted."""
        found = re.search(r"^vllm:num_preemptions_total\{[^}]*\} (\S+)$", metrics, re.MULTILINE)
        return int(float(found[1])) if found else 0

    def add_order(self, name: str, documents: list[str], tenant: str | None) -> tuple[str, str, dict[str, Any]]:
        """Return method, path and body that add a corpus."""
        return "POST", "/specplug/corpora", {"name": name, "documents": documents, "tenant": tenant}

    def remove_order(self, name: str, tenant: str | None) -> tuple[str, str, dict[str, Any] | None]:
        """Return method, path and body that remove a corpus."""
        from urllib.parse import quote

        return "DELETE", f"/specplug/corpora/{quote(name)}" + (f"?tenant={tenant}" if tenant else ""), None


class SglangTarget(Target):
    """SGLang."""

    def soaked(self, store: Path) -> Configuration:
        launch = importlib.import_module("tests.engines.sglang.launch")
        given = {"SPECPLUG_CONFIG": json.dumps(settings(store, self.mode))}
        small = {"max_total_tokens": self.cache, "schedule_conservativeness": 0.1, "log_level_http": "warning"}
        return launch.configuration("SPECPLUG", sampling=True, environment=given, **self._served(), **small)

    def control(self) -> Configuration:
        launch = importlib.import_module("tests.engines.sglang.launch")
        return launch.configuration(**self._served())

    def _served(self) -> dict[str, Any]:
        return {"model_path": str(plain.FOLDER), "served_model_name": MODEL}

    def body(self, request: Request) -> dict[str, Any]:
        body = self.dialect.body(probe_of(request), MODEL)
        body["stream"] = request.stream
        body["sampling_params"]["ignore_eos"] = request.prompt.ignores_end
        if request.fields:
            body["sampling_params"][self.carrier] = dict(request.fields)
        return body

    def read_event(self, event: Mapping[str, Any], before: tuple[int, ...]) -> tuple[tuple[int, ...], str | None]:
        reason = event["meta_info"]["finish_reason"]
        return tuple(event["output_ids"]), reason and reason["type"]

    def preemptions(self, metrics: str, log: str) -> int:
        return sum(int(count) for count in re.findall(r"#retracted_reqs: (\d+)", log))


def probe_of(request: Request) -> Probe:
    """Return a request as the audit's dialects take it."""
    sampling = SAMPLING[request.sampling] if request.kind == "sampled" else {}
    given = request.prompt
    return Probe(prompt=given.token_ids, max_tokens=request.max_tokens, json_schema=given.schema, **sampling)


INTERPRETED = Size(
    prompts=60,
    tokens=32,
    long_prompts=4,
    long_prompt_tokens=200,
    long_tokens=32,
    structured=9,
    sampled=1,
)
"""For vLLM's V2 runner in Triton's interpreter, which takes tens of milliseconds for a step."""

TARGETS: dict[str, Target] = {
    "vllm": Target("vllm"),
    "vllm-v2": Target("vllm-v2", size=INTERPRETED, shortest=8, together=10, cache=1152),
    "sglang": SglangTarget("sglang", Sglang(), "custom_params", "/flush_cache", cache=1024),
}
