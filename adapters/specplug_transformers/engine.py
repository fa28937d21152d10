"""The embedded engine: continuous batching over a Hugging Face model, with the full specplug pipeline.

This module schedules: requests wait in order of arrival, get a slot of the token table and the memory of their whole
text in the key-value cache, are prefilled, decode together, and leave.  Once admitted, a request runs to its end.
`specplug_transformers.decode` implements the decode step.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, get_args

import torch

from specplug.assembly import build_draft_stage, build_plan_stage, build_verifier
from specplug.cost.store import StartCosts
from specplug.errors import EngineError, RequestError
from specplug.interfaces import PluginContext
from specplug.metrics import SpecMetrics
from specplug.operator.startup import start_line
from specplug.plugins.registry import Registry, default_registry
from specplug.plugins.specs import VerifierSpec
from specplug.settings.checks import acceptance_thresholds
from specplug.settings.model import Settings
from specplug.settings.sources import load_settings
from specplug.steps.slots import RunningRequest, SlotAllocator
from specplug.types.caps import Distribution, EngineCaps, Ragged
from specplug.types.request import EngineEvent, EngineEventKind
from specplug.types.step import StepCost
from specplug.verify.reference import ReferenceVerifier
from specplug_transformers.decode import Decoder
from specplug_transformers.intake import GenerateRequest, RequestIntake
from specplug_transformers.runner import probed_runner
from specplug_transformers.state import RequestOutput, RequestState
from specplug_transformers.timing import costs_of

logger = logging.getLogger("specplug")


class Engine:
    """Serves a decoder-only Hugging Face model, which it puts into evaluation mode.

    Args:
        model: a `PreTrainedModel`, on the device to run on.
        tokenizer: needed for text prompts, stop strings, streamed text and reference texts; None suffices for ids.
        settings: a `Settings` object, a mapping that overrides SPECPLUG_CONFIG and the defaults, or None.
        max_num_seqs: maximum number of concurrent requests; further ones wait, as do those that do not fit yet.
        max_length: longest context, prompt and output; at most the model's own limit, which is the default.
        prefill_chunk: maximum number of prompt tokens per row and step.
        registry: plug-ins; the installed ones by default.

    Attributes:
        runner: runs the model; while no request is left it may `detach` from the model, and later `attach` again.
        start_costs: what steps cost, as far as it is known before the first request.

    Raises:
        EngineError: a size is below 1, the model cannot be served exactly, or transformers' version is not supported.
        SettingsError, PluginError: the settings are invalid, or name plug-ins that are not installed.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        settings: Settings | Mapping[str, Any] | None = None,
        max_num_seqs: int = 8,
        max_length: int | None = None,
        prefill_chunk: int = 512,
        registry: Registry | None = None,
    ) -> None:
        _check_sizes(max_num_seqs=max_num_seqs, max_length=max_length, prefill_chunk=prefill_chunk)
        self.registry = registry or default_registry()
        if not isinstance(settings, Settings):
            settings = load_settings(settings, flags_origin="Engine(settings=...)", registry=self.registry).settings
        self.settings = settings
        gamma = settings.num_speculative_tokens
        self.caps = EngineCaps(max_draft_length=gamma, ragged=Ragged.LONGEST, draft_input=Distribution.PROBS)
        self.runner = probed_runner(model)
        self.max_length = min(self.runner.max_length, max_length or self.runner.max_length)
        context = PluginContext(
            caps=self.caps,
            vocab_size=self.runner.vocab_size,
            max_slots=max_num_seqs,
            max_length=self.max_length,
            device=self.runner.device,
            seed=settings.seed,
            target_path=model.name_or_path or None,
            target_config=model.config,
            target_tokenizer=tokenizer,
        )
        self._drafts = build_draft_stage(settings, self.registry, context, grammars=True)
        self._plans = build_plan_stage(settings, self.registry, context, self._drafts.metrics.count_fault)
        device = self.runner.device
        self._allocator = SlotAllocator(max_num_seqs, device, self._drafts.on_event)
        tokens = torch.zeros(max_num_seqs, self.max_length, dtype=torch.int32, device=device)
        verifier = build_verifier(settings, self.registry, context)
        lossy = None
        if not self.registry.get(VerifierSpec, settings.verifier).caps.lossless:
            verifier, lossy = ReferenceVerifier(), verifier
        parts = self._plans, self._drafts, verifier, lossy
        self._decoder = Decoder(self.runner, self._allocator, tokens, *parts)
        self.start_costs = StartCosts()
        if settings.costs.measure and self._plans.reads_costs:
            self.start_costs = costs_of(settings, self.runner, verifier, max_num_seqs, self.max_length)
        if self.start_costs.costs:
            self._plans.calibrate(self.start_costs.costs)
        self._intake = RequestIntake(context, acceptance_thresholds(settings, self.registry), settings, model)
        self.max_num_seqs = max_num_seqs
        self._prefill_chunk = prefill_chunk
        self._waiting: deque[RequestState] = deque()
        self._running: list[RequestState] = []  # index is the row of the key-value cache
        self._by_id: dict[str, RequestState] = {}
        self._kept: list[RequestOutput] = []  # outputs that no step has returned yet
        logger.info("%s", start_line(settings, gamma, "transformers", "synchronous"))

    # -- requests ------------------------------------------------------------------------------------------------

    def add(self, request: GenerateRequest) -> str:
        """Queue a request; return its id.

        Raises:
            RequestError: the request is invalid.
        """
        in_use = self._in_use()
        state = self._intake.accept(request, in_use)
        name = state.request.request_id
        if name in in_use:
            raise RequestError.build("duplicate request id", who="Engine.add", found=repr(name), expected="a new id")
        self._by_id[name] = state
        self._waiting.append(state)
        return name

    def abort(self, request_id: str) -> RequestOutput | None:
        """Abort a waiting or running request and return its last output; None for unknown and finished ids.

        Outputs of it that no step has returned yet are dropped.
        """
        self._kept = [output for output in self._kept if output.request_id != request_id]
        state = self._by_id.get(request_id)
        if state is None:
            return None
        state.end("abort")
        if state in self._waiting:
            self._waiting.remove(state)
            del self._by_id[request_id]
        else:
            self._release(state, aborted=True)
        return state.take_output()

    def generate(self, requests: Sequence[GenerateRequest]) -> list[RequestOutput]:
        """Serve requests to their end and return their outputs in order; abort all of them if anything raises.

        Later steps return the outputs of other requests.
        """
        order: list[str] = []
        try:
            for request in requests:
                order.append(self.add(request))
            done = {output.request_id: output for output in self.serve(order) if output.finished}
            return [done[name] for name in order]
        finally:
            for name in order:
                self.abort(name)

    def run(self) -> Iterator[RequestOutput]:
        """Step until no request is left, and yield the output of each request that emitted."""
        while self.has_work:
            yield from self.step()

    def serve(self, request_ids: Collection[str]) -> Iterator[RequestOutput]:
        """Step until these requests have ended, and yield their outputs; later steps return those of the others."""
        while not self._in_use().isdisjoint(request_ids):
            outputs = self.step()
            self._kept += [output for output in outputs if output.request_id not in request_ids]
            yield from [output for output in outputs if output.request_id in request_ids]

    @property
    def has_work(self) -> bool:
        """Whether any request is running or waiting, or has outputs that no step has returned yet."""
        return bool(self._in_use())

    def _in_use(self) -> set[str]:
        return self._by_id.keys() | {output.request_id for output in self._kept}

    @property
    def metrics(self) -> SpecMetrics:
        """The counters of this engine."""
        return self._drafts.metrics

    @property
    def steps(self) -> int:
        """Decode steps so far: forward passes of the target that emitted tokens."""
        return self._decoder.steps

    @property
    def last_step(self) -> StepCost | None:
        """Cost of the newest decode step, without prefill."""
        return self._decoder.last_step

    def announce(self, kind: EngineEventKind) -> None:
        """Notify proposers of an event of the whole engine, for example that its weights changed.

        Another event raises `EngineError`.
        """
        if kind not in get_args(EngineEventKind):
            expected = ", ".join(get_args(EngineEventKind))
            raise EngineError.build("unknown event", who="Engine.announce", found=repr(kind), expected=expected)
        self._drafts.on_event(EngineEvent(kind))

    def set_ceiling(self, draft_length: int | None) -> None:
        """Bound the draft length while serving: 0 switches speculation off, None lifts the bound."""
        self._plans.ceiling = draft_length

    def close(self) -> None:
        """Release proposers, threads and files."""
        self._drafts.close()

    # -- one step ------------------------------------------------------------------------------------------------

    # Not inference mode: its tensors may not be written outside of it, for example by proposers' threads.
    @torch.no_grad()
    def step(self) -> list[RequestOutput]:
        """Run one engine step; return the outputs of requests that emitted, in it or since the step before."""
        # Those that have ended are of a step in which the callback of another request raised.
        self._keep_outputs([state for state in self._running if state.finish_reason is not None])
        self._admit()
        self._prefill([state for state in self._running if state.pending_tokens > 1])
        decoding = [state for state in self._running if state.pending_tokens == 1]
        if decoding:
            self._decoder.step(decoding)
        self._keep_outputs(decoding)
        outputs = self._kept
        self._kept = []
        return outputs

    def _keep_outputs(self, states: Sequence[RequestState]) -> None:
        for state in states:
            self._kept.append(state.take_output())
            if state.finish_reason is not None:
                self._release(state, aborted=False)

    def _prefill(self, filling: list[RequestState]) -> None:
        """Put one chunk of each row's text, all but its last token, into the cache."""
        if not filling:
            return
        chunks = [s.tokens[s.computed : min(s.computed + self._prefill_chunk, s.length - 1)] for s in filling]
        longest = max(map(len, chunks))
        # The padding of a row in the middle of its prompt may be written beyond what its request has reserved.
        self.runner.cache.reserve(len(self._running), max(s.computed for s in filling) + longest)
        padded = torch.tensor([chunk + [0] * (longest - len(chunk)) for chunk in chunks], device=self.runner.device)
        self.runner.forward([s.row for s in filling], [s.computed for s in filling], padded, keep_logits=False)
        for state, chunk in zip(filling, chunks, strict=True):
            state.computed += len(chunk)

    # -- slots and rows ------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Admit requests in order of arrival, as long as there is a slot, and memory for all their tokens."""
        while self._waiting and len(self._allocator) < self.max_num_seqs:
            state = self._waiting[0]
            row = len(self._running)
            columns = state.length + state.room + self.caps.max_draft_length
            try:
                self.runner.cache.reserve(row + 1, columns)
            except torch.OutOfMemoryError:
                if self._running:
                    return
                self._reserve_alone(state, columns)
            self._waiting.popleft()
            state.row = row
            self.runner.cache.clear(row)
            self._running.append(state)
            self._allocator.start(RunningRequest(state.request, state.length + state.room, ()))
            state.slot = self._allocator.slot_of(state.request.request_id)
            self._decoder.write(state.slot, 0, state.tokens)

    def _reserve_alone(self, state: RequestState, columns: int) -> None:
        """Reserve memory for the only request, in place of what earlier ones needed.

        Raises:
            torch.OutOfMemoryError: it is too large.
        """
        self.runner.cache.free()
        try:
            self.runner.cache.reserve(1, columns)
        except torch.OutOfMemoryError as error:
            error.add_note(f"request {state.request.request_id!r} does not fit; abort it and the others go on")
            raise

    def _release(self, state: RequestState, *, aborted: bool) -> None:
        """Free the slot and the cache row; the last row moves into the gap, so that rows in use stay contiguous."""
        self._allocator.finish(state.request.request_id, aborted=aborted, visible=state.visible_length)
        self._decoder.batch = None
        last = self._running.pop()
        if last is not state:
            self.runner.cache.move(last.row, state.row)
            self._running[state.row] = last
            last.row = state.row
        del self._by_id[state.request.request_id]


def _check_sizes(**sizes: int | None) -> None:
    for name, size in sizes.items():
        if size is not None and size < 1:
            remedy = "Leave it out for the default"
            raise EngineError.build(f"bad {name}", who="Engine", found=size, expected="an integer >= 1", remedy=remedy)
