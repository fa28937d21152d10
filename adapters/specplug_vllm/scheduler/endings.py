"""How requests end: what the workers of specplug have to know of it, and vLLM does not send them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.request import RequestStatus

from specplug.steps.stops import tokens_before_stop
from specplug_vllm.step_metadata import Ending

_LEAD = 4  # prompt tokens decoded before the output, as many tokenizers decode the first tokens of a text differently
_NEWEST = 256  # output tokens decoded: the front end aborts a request a few steps after its stop string
_KNOWN = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_ABORTED)


class Endings:
    """Collects the endings of requests between two steps for the workers, which get only finished ids from vLLM.

    The front end detects stop strings: it cuts the text and aborts the request.  By then the request may have run
    further steps, or may have ended by itself after the stop string.

    Args:
        model_config: vLLM's.  A server without a tokenizer has no stop strings.

    Attributes:
        newest: the endings since the last call of `take`, by request id.
    """

    def __init__(self, model_config: Any) -> None:
        self._tokenizer = None if model_config.skip_tokenizer_init else cached_tokenizer_from_config(model_config)
        self.newest: dict[str, Ending] = {}

    def record(self, request: Any) -> None:
        """Record how a `Request` ended."""
        self.newest[request.request_id] = self._ending(request)

    def take(self) -> dict[str, Ending]:
        """Return the endings since the last call, by request id."""
        taken = self.newest
        self.newest = {}
        return taken

    def _ending(self, request: Any) -> Ending:
        params = request.sampling_params
        aborted = request.status == RequestStatus.FINISHED_ABORTED
        if params is None or request.status not in _KNOWN:
            return Ending(aborted)
        if not params.stop or self._tokenizer is None:
            return Ending(aborted, request.num_tokens)
        seen = self._before_stop(request, params)
        if seen is not None:
            return Ending(aborted=False, visible=request.num_prompt_tokens + seen)
        # The front end may have aborted the request for a stop string that is not found here.
        return Ending(aborted, None if aborted else request.num_tokens)

    def _before_stop(self, request: Any, params: Any) -> int | None:
        prompt = request.num_prompt_tokens
        return tokens_before_stop(
            request.output_token_ids,
            [params.stop] if isinstance(params.stop, str) else params.stop,
            _decoder(self._tokenizer, params.skip_special_tokens),
            lead=request.all_token_ids[max(0, prompt - _LEAD) : prompt],
            least=params.min_tokens,
            keep=params.include_stop_str_in_output,
            newest=_NEWEST,
        )


def _decoder(tokenizer: Any, skip_special_tokens: bool) -> Callable[[list[int]], str]:
    """Return a function that decodes like vLLM's front end, which does not clean up spaces."""
    options = {"clean_up_tokenization_spaces": False} if hasattr(tokenizer, "clean_up_tokenization_spaces") else {}

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=skip_special_tokens, **options))

    return decode
