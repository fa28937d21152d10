"""Conversion of vLLM's `NewRequestData` to specplug's `RunningRequest`, in the worker process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specplug.requests import wire
from specplug.requests.clients import isolation_key
from specplug.runtime.slots import MAX_STOP_IDS, RunningRequest, Span
from specplug.types.request import Reference, Request, RequestOptions


def fields_of(params: Any, drafts_seeded: bool) -> tuple[RequestOptions, tuple[Reference, ...], str | None]:
    """Return the options, references and tenant of vLLM's sampling parameters.

    V1's generators advance by as many numbers as a step draws, and so by its drafts, which depend on load and on what
    was learnt.  There (`drafts_seeded` is false) a request that samples with a seed has no drafts, so that the same
    seed gives the same text.
    """
    options, references, tenant = wire.decode(params.extra_args)
    if not drafts_seeded and params.seed is not None and params.temperature > 0:
        options = replace(options, enabled=False)
    return options, references, tenant


def running_request(
    new: Any, max_model_len: int, cache_salt: str | None = None, *, drafts_seeded: bool
) -> RunningRequest:
    """Convert a vLLM `NewRequestData`.  Requests that do not sample (pooling) never draft."""
    params = new.sampling_params
    prompt = new.prompt_embeds if new.prompt_token_ids is None else new.prompt_token_ids
    prompt_length = 0 if prompt is None else len(prompt)
    if params is None:
        return RunningRequest(Request(new.req_id, prompt_length, max_tokens=0), end=prompt_length, stop_ids=())
    options, references, tenant = fields_of(params, drafts_seeded)
    lora_id = None if new.lora_request is None else int(new.lora_request.lora_int_id)
    max_tokens = max_model_len if params.max_tokens is None else int(params.max_tokens)
    request = Request(
        request_id=new.req_id,
        prompt_length=prompt_length,
        max_tokens=max_tokens,
        temperature=params.temperature,
        options=options,
        references=references,
        tenant=tenant,
        isolation_key=isolation_key(tenant, (cache_salt,), lora_id, wire.client_of(params.extra_args)),
        grammar=params.structured_outputs is not None,
    )
    end = min(prompt_length + max_tokens, max_model_len)
    stops = [] if params.ignore_eos or params.eos_token_id is None else [params.eos_token_id]  # this one comes first
    stop_ids = tuple(dict.fromkeys([*stops, *(params.stop_token_ids or ())]))[:MAX_STOP_IDS]
    return RunningRequest(request, end, stop_ids, _barriers(new), tokens_of(new))


def tokens_of(new: Any) -> Sequence[int]:
    """Return the prompt, and the output so far, of a request that starts or resumes on V2; nothing on V1."""
    return new.prefill_token_ids or ()


def _barriers(new: Any) -> tuple[Span, ...]:
    """Return the spans of pictures and the like, and of prompt embeddings."""
    places = [feature.mm_position for feature in new.mm_features or ()]
    embedded = () if new.prompt_embeds is None else ((0, int(new.prompt_embeds.shape[0])),)
    return (*((place.offset, place.offset + place.length) for place in places), *embedded)
