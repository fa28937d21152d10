"""vLLM's requests as specplug's, and the rules for drafts where vLLM serves a row with drafts otherwise than without.

Every rule is about the state that vLLM's V1 runner keeps for a request: it is of the text before the step, although a
row with drafts also reads it after them.  V2 computes the same state anew at every draft position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from specplug.requests import wire
from specplug.requests.clients import isolation_key
from specplug.steps.slots import MAX_STOP_IDS, RunningRequest, Span
from specplug.types.request import Reference, Request, RequestOptions, digest_of
from specplug_vllm.config import Runner, runner_of

_PLACEHOLDER = -1  # a draft token that only the worker knows, under async scheduling


class DraftRules:
    """Rules for the drafts of single requests, the same in the scheduler and in the workers.

    Args:
        vllm_config: the server's configuration.

    Attributes:
        runner: vLLM's model runner.
        draws_by_position: whether the random numbers of a seed belong to the text's positions, and not to the steps.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.runner: Runner = runner_of(vllm_config)
        self.draws_by_position = self.runner == "v2"
        reasoning = vllm_config.reasoning_config
        start = () if reasoning is None else reasoning.reasoning_start_token_ids or ()
        end = () if reasoning is None else reasoning.reasoning_end_token_ids or ()
        self._hidden_or_marker = frozenset([_PLACEHOLDER, *start, *end])

    def allow_drafts(self, params: Any) -> bool:
        """Return whether a request with these sampling parameters may have drafts at all.

        V1's generators advance by as many numbers as a step draws, and so by its drafts, which depend on load and on
        what was learnt.  There a request that samples with a seed has no drafts, so that the same seed gives the same
        text.
        """
        return self.draws_by_position or params.seed is None or params.temperature <= 0

    def limits_thinking(self, params: Any) -> bool:
        """Return whether `cut` cuts the drafts of such a request depending on their tokens."""
        return self.runner == "v1" and params.thinking_token_budget is not None

    def cut(self, request: Any) -> None:
        """Cut the drafts of a scheduler's `Request` that the next step verifies.

        - **Minimum tokens**: V1 masks the end and stop ids after a whole draft by the number of tokens before the
          step.  So the draft ends early enough for the token after it to be below the minimum, too.  Under async
          scheduling V1's number leaves accepted drafts out, so there are none below the minimum.
        - **Thinking budgets**: V1 counts the reasoning before a step and not within its drafts: it would not limit what
          a draft begins, and would force a second end after one that a draft holds.  So a draft ends before the first
          token that begins or ends reasoning.
        """
        params = request.sampling_params
        drafts = request.spec_token_ids
        if self.runner == "v2" or not drafts or params is None:
            return
        missing = params.min_tokens - request.num_output_tokens
        if missing > 0:
            drafts = [] if drafts[0] == _PLACEHOLDER else drafts[: missing - 1]
        if self.limits_thinking(params):
            drafts = [*takewhile(lambda token: token not in self._hidden_or_marker, drafts)]
        if len(drafts) < len(request.spec_token_ids):
            request.spec_token_ids = drafts


def fields_of(params: Any, rules: DraftRules) -> tuple[RequestOptions, tuple[Reference, ...], str | None]:
    """Return the options, references and tenant of vLLM's sampling parameters."""
    options, references, tenant = wire.decode(params.extra_args)
    if not rules.allow_drafts(params):
        options = replace(options, enabled=False)
    return options, references, tenant


def running_request(
    new: Any, max_model_len: int, cache_salt: str | None = None, *, rules: DraftRules
) -> RunningRequest:
    """Convert a vLLM `NewRequestData`.  Requests that do not sample (pooling) never draft."""
    params = new.sampling_params
    prompt = new.prompt_embeds if new.prompt_token_ids is None else new.prompt_token_ids
    prompt_length = 0 if prompt is None else len(prompt)
    if params is None:
        return RunningRequest(Request(new.req_id, prompt_length, max_tokens=0), end=prompt_length, stop_ids=())
    options, references, tenant = fields_of(params, rules)
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
        grammar=params.structured_outputs is not None or rules.limits_thinking(params),
        prompt_digest="" if new.prompt_token_ids is None else digest_of(new.prompt_token_ids),
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
