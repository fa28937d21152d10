"""Conversion of SGLang's `Req` to specplug's `RunningRequest`, in the scheduler's process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.requests import wire
from specplug.requests.clients import isolation_key
from specplug.steps.slots import MAX_STOP_IDS, RunningRequest, Span
from specplug.steps.step_planner import Bounds
from specplug.types.request import Request, RequestOptions, digest_of


def running_request(req: Any, max_length: int, inexact: Sequence[str] | None = None) -> RunningRequest:
    """Convert a `Req`.  One that SGLang would verify inexactly gets no drafts: see `inexact_feature`."""
    params = req.sampling_params
    options, references, tenant = wire.decode(params.custom_params)
    if inexact_feature(req, inexact) is not None:
        options = RequestOptions(enabled=False, proposer=options.proposer, store=options.store)
    request = Request(
        request_id=req.rid,
        prompt_length=len(req.origin_input_ids),
        max_tokens=_max_tokens(req, max_length),
        temperature=0.0 if params.top_k <= 1 else params.temperature,
        options=options,
        references=references,
        tenant=tenant,
        isolation_key=isolation_key(
            tenant, (req.extra_key, req.cache_salt), req.lora_id, wire.client_of(params.custom_params)
        ),
        grammar=req.grammar is not None,
        prompt_digest=digest_of(req.origin_input_ids),
    )
    return RunningRequest(request, _end(req, max_length), _stop_ids(req), _barriers(req))


def bounds_of(req: Any, max_length: int, inexact: Sequence[str] | None = None) -> Bounds:
    """Return the limits of a `Req`; see `running_request`."""
    cap = 0 if inexact_feature(req, inexact) else wire.decode(req.sampling_params.custom_params)[0].cap
    return Bounds(_end(req, max_length), cap)


def _max_tokens(req: Any, max_length: int) -> int:
    max_tokens = req.sampling_params.max_new_tokens
    return max_length if max_tokens is None else int(max_tokens)


def _end(req: Any, max_length: int) -> int:
    return min(len(req.origin_input_ids) + _max_tokens(req, max_length), max_length)


def inexact_feature(req: Any, inexact: Sequence[str] | None = None) -> str | None:
    """Return the request feature that SGLang would serve inexactly with drafts; None if there is none.

    SGLang counts one token per step for penalties and min_new_tokens, however many were accepted, and its verification
    skips min_p and custom logit processors.  Grammars that cannot go back would constrain the first token of a draft
    only, and a draft could end the scheduler (SGLang 24413).  Without drafts a step emits one token.

    Args:
        req: a `Req`.
        inexact: the features to look for; None for all of them.
    """
    return next((name for name in _inexact_features(req) if inexact is None or name in inexact), None)


def _inexact_features(req: Any) -> Iterator[str]:
    params = req.sampling_params
    if params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1.0:
        yield "penalties"
    if params.min_new_tokens > 0:
        yield "min_new_tokens"
    if req.custom_logit_processor is not None:
        yield "custom logit processor"
    if params.min_p > 0 and params.top_k > 1:
        yield "min_p"
    if req.grammar is not None and not can_roll_back(req.grammar):
        yield "grammar"


def can_roll_back(grammar: Any) -> bool:
    """Return whether a `BaseGrammarObject`, or the one within a reasoner's, can roll back; Outlines' cannot."""
    from sglang.srt.constrained.base_grammar_backend import BaseGrammarObject

    constrains = getattr(grammar, "grammar", None) or grammar
    return type(constrains).rollback is not BaseGrammarObject.rollback


def text_length(req: Any) -> int:
    """Return the tokens of a request's prompt and output, as far as the host knows them."""
    return len(req.origin_input_ids) + len(req.output_ids)


def finished_prefills(reqs: Sequence[Any]) -> list[int]:
    """Return the rows of a prefill batch that emit a token; the others are chunks of prompts."""
    return [row for row, req in enumerate(reqs) if req.extend_end >= text_length(req)]


def prompt_of(req: Any) -> npt.NDArray[np.int64]:
    """Return [n] int64: the prompt and the emitted tokens.

    The prompt is in unpadded text ids if it has as many of them as of the padded ids, which index the cache.
    """
    prompt = req.origin_input_ids_unpadded
    padded = req.origin_input_ids
    parts = (prompt if len(prompt) == len(padded) else padded, req.output_ids)
    return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])


def _stop_ids(req: Any) -> tuple[int, ...]:
    """Return the stop token ids of the request, end-of-sequence first."""
    params = req.sampling_params
    tokenizer = req.tokenizer
    if params.ignore_eos:
        return ()
    ids = [*(req.eos_token_ids or ())]
    if tokenizer is not None:
        ids = [tokenizer.eos_token_id, *ids, *(getattr(tokenizer, "additional_stop_token_ids", None) or ())]
    ids += params.stop_token_ids or ()
    return tuple(dict.fromkeys(id for id in ids if id is not None))[:MAX_STOP_IDS]


def _barriers(req: Any) -> tuple[Span, ...]:
    """Return the spans that are not text; the whole prompt if their positions are unknown."""
    length = len(req.origin_input_ids)
    if req.input_embeds is not None or req.positional_embed_overrides is not None:
        return ((0, length),)
    inputs = req.multimodal_inputs
    if inputs is None:
        return ()
    if len(req.origin_input_ids_unpadded) != length or any(item.offsets is None for item in inputs.mm_items):
        return ((0, length),)
    return tuple((start, end + 1) for item in inputs.mm_items for start, end in item.offsets)
