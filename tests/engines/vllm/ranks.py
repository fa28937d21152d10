"""Functions that look into, and meddle with, the workers of an engine with several ranks; see `inside`.

They run in the engine's front process and reach the workers by `collective_rpc`, which pickles functions by name.
"""

from __future__ import annotations

from typing import Any

from tests.engines.vllm.inside import generate


def held(llm: Any) -> list[dict[str, Any]]:
    """Return by rank whether it drafts, and on V2 the drafts that it holds, by slot."""
    return list(llm.collective_rpc(_held))


def generate_and_hold(
    llm: Any, prompts: list[list[int]], params: dict[str, Any], apart: bool = False
) -> dict[str, Any]:
    """Generate, and return the "answers", what every rank "held" at the end, and its "status".

    Args:
        apart: spoil the drafts that ranks other than 0 receive, as if each rank drafted for itself.
    """
    if apart:
        set_apart(llm, True)
    try:
        answers = generate(llm, prompts, params)
        return {"answers": answers, "held": held(llm), "status": list(llm.collective_rpc("specplug_status"))}
    finally:
        if apart:
            set_apart(llm, False)


def set_apart(llm: Any, apart: bool) -> None:
    """Begin or end to spoil the drafts that ranks other than 0 receive."""
    llm.collective_rpc(_spoil_received if apart else _restore)


def counts(llm: Any) -> list[int]:
    """Return the accepted and the rejected draft tokens so far."""
    total = llm.collective_rpc("specplug_status")[0]["metrics"]["total"]
    return [total["accepted"], total["rejected"]]


def _held(worker: Any) -> dict[str, Any]:
    runner = worker.model_runner
    drafter = getattr(runner, "speculator", None) or runner.drafter
    states = getattr(runner, "req_states", None)
    drafts = None if states is None else states.draft_tokens.tolist()
    return {"rank": worker.rank, "leads": drafter.drafting is not None, "drafts": drafts}


def _spoil_received(worker: Any) -> None:
    """On ranks other than 0, replace the drafts that arrived by other valid ids."""
    speculator = worker.model_runner.speculator
    receive = speculator._ranks.broadcast
    size = worker.model_runner.vocab_size

    def broadcast(tensor: Any) -> None:
        receive(tensor)
        if worker.rank != 0:
            tensor.add_(17 * worker.rank).remainder_(size)

    speculator._ranks.broadcast = broadcast


def _restore(worker: Any) -> None:
    del worker.model_runner.speculator._ranks.broadcast
