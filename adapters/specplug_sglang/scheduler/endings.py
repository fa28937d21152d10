"""Number of tokens that the client saw of a request, computed from SGLang's `Req` after it has left."""

from __future__ import annotations

from typing import Any

from specplug.runtime.visible_text import tokens_before_stop


def visible_tokens(req: Any) -> int | None:
    """Return an upper bound on the tokens of prompt and output that the client saw; None if unknown.

    Args:
        req: a `Req` that has finished, was aborted or was dropped.  SGLang's scheduler finds the token that completes a
            stop string; the string is cut from the text later.
    """
    from sglang.srt.managers.schedule_batch import FINISH_MATCHED_STR

    prompt, output, reason = len(req.origin_input_ids), req.output_ids_through_stop, req.finished_reason
    matched = getattr(reason, "matched", None)
    if not isinstance(matched, str):
        return prompt + len(output)
    if not isinstance(reason, FINISH_MATCHED_STR):  # a regex, which SGLang cuts only where the text holds it literally
        seen = _before(req, matched)
        return prompt + (len(output) if seen is None else seen)
    if matched not in req.sampling_params.stop_strs:  # SGLang reports broken logits this way
        return None
    seen = _before(req, matched)
    if seen is None:  # the scheduler also matches special tokens, which the client's text lacks
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
