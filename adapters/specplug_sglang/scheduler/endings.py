"""How much of a request's text the client saw, read off SGLang's request when it has left."""

from __future__ import annotations

from typing import Any

from specplug.runtime.visible_text import tokens_before_stop


def visible_tokens(req: Any) -> int | None:
    """Return how many tokens of prompt and output the client saw at most; None where that is not known.

    Args:
        req: a `Req` that has finished, was aborted or was dropped.  A stop string is cut from the text behind SGLang's
            scheduler, which has found the token that completes it.
    """
    from sglang.srt.managers.schedule_batch import FINISH_MATCHED_STR

    prompt, output, reason = len(req.origin_input_ids), req.output_ids_through_stop, req.finished_reason
    matched = getattr(reason, "matched", None)
    if not isinstance(matched, str):
        return prompt + len(output)
    if not isinstance(reason, FINISH_MATCHED_STR):  # an expression, which SGLang cuts from texts that spell it as it is
        seen = _before(req, matched)
        return prompt + (len(output) if seen is None else seen)
    if matched not in req.sampling_params.stop_strs:  # SGLang calls broken logits by such a name
        return None
    seen = _before(req, matched)
    if seen is None:  # the scheduler looks at special tokens too, which the client's text lacks
        seen = _before(req, matched, special=True)
    return None if seen is None else prompt + seen


def _before(req: Any, string: str, *, special: bool = False) -> int | None:
    params, tokenizer = req.sampling_params, req.tokenizer
    skip = params.skip_special_tokens and not special
    return tokens_before_stop(
        req.output_ids_through_stop,
        [string],
        lambda ids: str(tokenizer.decode(ids, skip_special_tokens=skip)),
        keep=params.no_stop_trim,
    )
