"""Whole steps of vLLM's engine core that are timed before the first request.

The engine core runs whole steps: scheduler, workers of all ranks, attention, sampler and verification.  Its scheduler
is a second one meanwhile, of vLLM's own class and with its own requests, statistics and prefix cache.  That one is then
dropped, so neither clients nor metrics see anything of these steps, and workers take them for warm-up, so that
specplug drafts nothing and remembers nothing.  Drafting is left out of the times: it takes as long however many of the
draft tokens are verified.  A drafter of vLLM's own drafts, as it belongs to the worker's step.

Requests start as if all of their prompt but the last token had been computed: attention reads what the cache happens to
hold, in the time that it always takes.  Models with recurrent layers compute it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
from vllm import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from specplug.cost.measuring import Measurement, StepLimits, StepSize, measure, step_sizes
from specplug.types.caps import Ragged
from specplug.types.step import StepCost
from specplug_vllm.config import drafter_of, engine_caps, runner_of, use_of
from specplug_vllm.scheduler.row_lengths import TAKE_A_LENGTH
from specplug_vllm.startup import recurrent

MAY_DRAFT_NOTHING = ("custom_class", "ngram", "suffix")
"""Methods whose drafters find no drafts for random tokens.  Those of the others are verified, as their worker may hold
the distributions that they were drawn from."""

CONTEXT = 256
RECURRENT_CONTEXT = 16
"""Tokens of each request's context, or half of the most that the server accepts.  Recurrent layers have to compute
them, in steps that the limit on the seconds does not count, and take as long with any context."""

_TRIES = 8
"""Steps beyond the timed ones within which a size must be reached; else it is left out."""


def measure_steps(core: Any, limits: StepLimits, seconds: float) -> Measurement:
    """Time steps of an engine core for about so many seconds, and leave the core as it was, even if a step fails."""
    scheduler = core.scheduler
    timed_class = _TimedAsyncScheduler if isinstance(scheduler, AsyncScheduler) else _TimedScheduler
    args, kwargs = scheduler.built_with
    core.scheduler = timed_class(*args, **{**kwargs, "log_stats": False, "include_finished_set": False})
    try:
        steps = _Steps(core)
        measured = measure(steps.run, step_sizes(limits), seconds)
        steps.end()
        return measured
    except Exception:
        if core.batch_queue:
            core.batch_queue.clear()
        scheduler.finished_req_ids.update(core.scheduler.names)  # with its first step the workers forget them
        raise
    finally:
        core.scheduler = scheduler


class _Timed:
    """Mixin of vLLM's schedulers that sets the drafts of each step, and times steps as `PlanningMixin` does.

    Attributes:
        lengths: draft tokens of each row in further steps.
        own_ids: the drafts to verify, where workers verify the ids that a scheduler sends; None where they hold drafts.
        least_drafted: draft tokens that the drafter makes of each row even if fewer are verified.
        cuts_drafts: whether plans in service always have the longest drafts, of which each row's are cut.  Costs then
            state no draft length: timed steps differ by their tokens alone, and so do steps in service.
        names: all requests that it has had.
        steps: costs of the steps that have run.
    """

    running: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dynamic_sd_lookup = None
        self.lengths: Sequence[int] = ()
        self.own_ids: list[int] | None = None
        self.least_drafted = 0
        self.cuts_drafts = False
        self.names: list[str] = []
        self.steps: list[StepCost] = []
        self._launched: deque[tuple[float, tuple[int, int, int, int]]] = deque()
        self._ended = 0.0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule as vLLM does, with drafts of these lengths."""
        began = perf_counter()
        self.num_spec_tokens = 0  # of requests that join
        for row, (request, length) in enumerate(zip(self.running, self.lengths, strict=False)):
            drafts = request.spec_token_ids if self.own_ids is None else self.own_ids[row:]
            request.spec_token_ids = drafts[:length]
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        scheduled = output.num_scheduled_tokens
        drafts = output.scheduled_spec_decode_tokens
        longest = 0 if self.cuts_drafts else max(map(len, drafts.values()), default=0)
        context = sum(output.scheduled_cached_reqs.num_computed_tokens)
        self._launched.append((began, (len(scheduled), sum(scheduled.values()), context, longest)))
        return output

    def _update_after_schedule(self, output: Any) -> None:
        output.num_spec_tokens_to_schedule = max([self.least_drafted, *self.lengths])
        super()._update_after_schedule(output)  # type: ignore[misc]

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        """Record what the step cost."""
        ended = perf_counter()
        began, work = self._launched.popleft()
        self.steps.append(StepCost(*work, seconds=ended - max(began, self._ended)))
        self._ended = ended
        return super().update_from_output(*args, **kwargs)  # type: ignore[misc]


class _TimedScheduler(_Timed, Scheduler):
    """vLLM's scheduler for timed steps."""


class _TimedAsyncScheduler(_Timed, AsyncScheduler):
    """vLLM's asynchronous scheduler for timed steps."""


class _Steps:
    """Runs steps of an engine core whose scheduler is a `_Timed` one."""

    def __init__(self, core: Any) -> None:
        config = core.vllm_config
        self._core = core
        self._scheduler = core.scheduler
        self._recurrent = recurrent.is_recurrent(config)
        self._longest = config.model_config.max_model_len
        self._context = min(RECURRENT_CONTEXT if self._recurrent else CONTEXT, self._longest // 2)
        self._random = np.random.default_rng(0)
        vocab = config.model_config.get_vocab_size()
        self._ids = vocab // 8, vocab // 2  # special tokens come first or last
        runner = runner_of(config)
        drafter = drafter_of(config) if use_of(config) == "engine" else None
        caps = engine_caps(config)
        longest = caps.max_draft_length
        self._scheduler.cuts_drafts = caps.ragged is Ragged.NATIVE
        has_own = drafter is not None and drafter not in MAY_DRAFT_NOTHING
        if runner == "v1" and not config.scheduler_config.async_scheduling and not has_own:
            self._scheduler.own_ids = self._random_ids(config.scheduler_config.max_num_seqs + longest)
        if runner == "v1" and drafter is not None and drafter not in TAKE_A_LENGTH:
            self._scheduler.least_drafted = longest

    def run(self, size: StepSize, count: int) -> list[StepCost]:
        """Run so many steps of a size in a row, and return their costs; none if the engine does not run such steps."""
        if not self._decode(size.requests, (count + _TRIES) * (max(size.lengths) + 1)):
            return []
        scheduler = self._scheduler
        before = len(self._scheduler.steps)
        scheduler.lengths = size.lengths
        for _ in range(count + _TRIES):
            self._step()
            steps = scheduler.steps[before:]
            costs = [step for step in steps if (step.requests, step.tokens) == (size.requests, size.tokens)]
            if len(costs) >= count:
                return costs[:count]
        return []

    def end(self) -> None:
        """End all requests, and let the workers forget them."""
        self._scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
        while self._scheduler.has_requests() or self._core.batch_queue:
            self._step()

    def _step(self) -> None:
        _, executed = self._core.step_fn()
        self._core.post_step(executed)

    def _decode(self, requests: int, tokens: int) -> bool:
        """Let so many requests decode that have room for so many tokens each; return whether they fit."""
        running = self._scheduler.running
        end = self._longest - tokens
        if len(running) == requests and all(request.num_computed_tokens < end for request in running):
            return True
        self._scheduler.lengths = ()
        self.end()
        if self._context > end:
            return False
        for _ in range(requests):
            self._scheduler.add_request(self._request())
        count = 0
        for _ in range(_TRIES * requests):
            self._step()
            running = self._scheduler.running
            if not any(request.is_prefill_chunk for request in running):
                if len(running) == requests:
                    return True
                if len(running) <= count:  # the cache has no room for more
                    return False
            count = len(running)
        return False

    def _request(self) -> Request:
        params = SamplingParams(temperature=0.0, seed=0, ignore_eos=True, max_tokens=self._longest)
        name = f"specplug-timed-{len(self._scheduler.names)}"
        self._scheduler.names.append(name)
        prompt = self._random_ids(self._context)
        hasher = self._core.request_block_hasher
        request = Request(name, prompt, sampling_params=params, pooling_params=None, block_hasher=hasher)
        if not self._recurrent:
            request.num_computed_tokens = self._context - 1
        return request

    def _random_ids(self, count: int) -> list[int]:
        ids: list[int] = self._random.integers(*self._ids, count).tolist()
        return ids
