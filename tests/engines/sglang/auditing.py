"""Functions that audit an engine from inside its process, and mistakes to plant in its scheduler's; see
`tests.engines.auditing`."""

from __future__ import annotations

import json
from typing import Any

import torch

from specplug.operator.status import counting
from specplug_sglang import status
from tests.engines.auditing import fields_of
from tests.engines.sglang import trees


def answer(engine: Any, probes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answer an audit's probes together."""
    tops = [probe["top_logprobs"] for probe in probes]
    outputs = engine.generate(
        input_ids=[list(probe["prompt"]) for probe in probes],
        sampling_params=[_params(probe) for probe in probes],
        return_logprob=[top > 0 for top in tops],
        top_logprobs_num=tops,
    )
    return [
        {
            "token_ids": list(output["output_ids"]),
            "text": output["text"],
            "finish_reason": output["meta_info"]["finish_reason"]["type"],
            "top_logprobs": _top_logprobs(output["meta_info"]),
        }
        for output in outputs
    ]


def _top_logprobs(about: dict[str, Any]) -> list[dict[int, float]]:
    """Return the log-probabilities of each output token and of the likeliest ones beside it, by token id."""
    tokens, tops = about.get("output_token_logprobs") or (), about.get("output_top_logprobs") or ()
    return [{token: value for value, token, _ in (*(top or ()), own)} for own, top in zip(tokens, tops, strict=True)]


def _params(probe: dict[str, Any]) -> dict[str, Any]:
    schema, fields = probe["json_schema"], fields_of(probe)
    params = {
        "max_new_tokens": probe["max_tokens"],
        "temperature": probe["temperature"],
        "top_k": probe["top_k"] or -1,
        "stop": list(probe["stop"]),
        "sampling_seed": probe["seed"],
        "json_schema": None if schema is None else json.dumps(schema),
        "custom_params": {"specplug": fields} if fields else None,
    }
    return {name: value for name, value in params.items() if value is not None}


def counts(engine: Any) -> list[int]:
    """Return the accepted and the rejected draft tokens so far."""
    totals = [part["metrics"]["total"] for one in status.read(engine) for part in counting(one)]
    return [sum(total[name] for total in totals) for name in ("accepted", "rejected")]


def swap_rows(scheduler: Any) -> None:
    """Verify the drafts of the first two rows by each other's logits."""
    from specplug_sglang.verification import exact

    verify = exact.verify

    def swapped(runner: Any, batch: Any, logits: Any, mask: Any) -> Any:
        if len(batch.reqs) > 1:
            rows = logits.next_token_logits.view(len(batch.reqs), -1, logits.next_token_logits.shape[-1])
            logits.next_token_logits = torch.cat([rows[:2].flip(0), rows[2:]]).flatten(0, 1)
        return verify(runner, batch, logits, mask)

    trees.put(exact, "verify", swapped)


def shift_slots(scheduler: Any) -> None:
    """Write keys and values of verified tokens to their neighbours' positions."""
    from specplug_sglang.scheduler import worker

    prepare = worker.prepare

    def shifted(batch: Any, verify_input: Any) -> None:
        prepare(batch, verify_input)
        batch.out_cache_loc = batch.out_cache_loc.roll(1)

    trees.put(worker, "prepare", shifted)
