"""Ends of SGLang's requests: where in a step's tokens a request ends, and how much of it the client saw.

SGLang judges the tokens of a step at once: of several stop strings it takes the first listed and not the first that the
text completes, a stop string precedes an earlier end of text, tokens after the end count as reasoning, and the prompt
of a session's next turn has them, unless the session is streamed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specplug.steps.stops import tokens_before_stop
from specplug_sglang.config import use_of


def find_end(original: Callable[..., None], req: Any, new_accepted_len: int = 1) -> None:
    """Find the end that `new_accepted_len` steps of one token would have found."""
    accepted = req.__dict__.pop(_ACCEPTED, 0)
    if req.finished():
        return original(req, new_accepted_len)
    params = req.sampling_params
    start = len(req.output_ids) - new_accepted_len
    has_strings = params.stop_strs or params.stop_regex_strs
    if new_accepted_len > 1 and has_strings and not req.to_finish and _is_ours():
        _judge_each(original, req, start)
    else:
        original(req, new_accepted_len)
    if req.finished() and _is_ours():
        if req.finished_len is not None:
            req.reasoning_tokens = min(req.reasoning_tokens, req.finished_len)
        _count_until_end(req, accepted, max(len(req.output_ids_through_stop) - start, 0))


def _is_ours() -> bool:
    from sglang.srt.runtime_context import get_spec

    return bool(use_of(get_spec()))


_ACCEPTED = "_specplug_accepted"
"""Attribute of a `Req`; see `note_accepted`."""


def note_accepted(original: Callable[..., None], req: Any, num_correct_drafts: int) -> None:
    """Note the draft tokens that a request's newest step accepted, until its end is looked for."""
    setattr(req, _ACCEPTED, num_correct_drafts)
    original(req, num_correct_drafts)


def _count_until_end(req: Any, accepted: int, visible: int) -> None:
    """Reduce an answer's counts of its last step from `accepted` draft tokens to `visible`, those up to its end."""
    if accepted > visible:
        req.spec_num_correct_drafts -= accepted - visible
        req.spec_correct_drafts_histogram[accepted] -= 1
        req.spec_correct_drafts_histogram[visible] += 1


def _judge_each(original: Callable[..., None], req: Any, start: int) -> None:
    """Show SGLang the output token by token from `start` on, until it ends; all tokens stay in the output."""
    output = req.output_ids
    grammar = req.grammar
    following = req.output_ids[start:]
    del output[start:]
    while following and not req.finished():
        output.append(following.pop(0))
        req.grammar = None if following else grammar  # which has taken the whole step
        original(req, 1)
    req.grammar = grammar
    if req.finished() and req.finished_len is None:
        req.finished_len = len(output)
    output.extend(following)


def continue_session(original: Callable[..., Any], last_req: Any, *args: Any) -> Any:
    """Continue a session from the tokens of its last turn up to the end, as SGLang does where sessions are streamed."""
    if _is_ours():
        last_req.output_ids = last_req.output_ids_through_stop
    return original(last_req, *args)


def visible_tokens(req: Any) -> int | None:
    """Return an upper bound on the tokens of a `Req` that the client saw, prompt and output; None if unknown.

    SGLang's scheduler finds the token that completes a stop string; the string is cut from the text later.
    """
    from sglang.srt.managers.schedule_batch import FINISH_MATCHED_STR

    prompt = len(req.origin_input_ids)
    output = req.output_ids_through_stop
    reason = req.finished_reason
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
    params = req.sampling_params
    tokenizer = req.tokenizer
    skip = params.skip_special_tokens and not special
    return tokens_before_stop(
        req.output_ids_through_stop,
        [string],
        lambda ids: str(tokenizer.decode(ids, skip_special_tokens=skip)),
        keep=params.no_stop_trim,
    )
