"""The embedded engine: continuous batching over a Hugging Face model, with the full specplug pipeline.

One call of `step` is one engine step: admit waiting requests, prefill what is not in the cache yet, and for the rows
that decode plan -> propose -> trim -> forward -> verify -> observe.  The last token of a row is fed together with its
draft, so the first output token needs no special case, and a row without a draft decodes plainly.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specplug.assembly import build_draft_stage, build_plan_stage, build_verifier
from specplug.errors import RequestError
from specplug.interfaces import PluginContext
from specplug.registry import Registry, default_registry
from specplug.settings.model import Settings
from specplug.settings.sources import load_settings
from specplug.types.caps import DraftInput, EngineCaps, Ragged
from specplug.types.draft import Draft
from specplug.types.plan import HostStats, StepCost
from specplug.types.request import EngineEvent, EngineEventKind, Lifecycle, RequestEvent
from specplug.types.verdict import Outcome
from specplug.verify.random import uniforms
from specplug.verify.types import SamplingBatch, TargetLogits, Verification
from specplug_transformers.intake import GenerateRequest, Intake, RequestOutput
from specplug_transformers.processing import process_row
from specplug_transformers.runner import ModelRunner
from specplug_transformers.state import RequestState
from specplug_transformers.table import TokenTable


class Engine:
    """Serves a decoder-only Hugging Face model.

    Args:
        model: a `PreTrainedModel`, on the device that it shall run on.
        tokenizer: needed for text prompts, stop strings, streaming text and reference texts; ids alone need none.
        settings: a `Settings` object, a mapping that overrides SPECPLUG_CONFIG and the defaults, or None.
        max_num_seqs: most requests at a time; further ones wait.
        max_length: longest context, prompt and output; the model's own limit by default.
        prefill_chunk: most prompt tokens per row and step.
        registry: plug-ins; the installed ones by default.
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
        self.registry = registry or default_registry()
        if not isinstance(settings, Settings):
            settings = load_settings(settings, flags_origin="Engine(settings=...)", registry=self.registry).settings
        self.settings = settings
        limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.max_length = min(x for x in (max_length, limit, 1 << 20) if x is not None)
        gamma = settings.num_speculative_tokens
        room = self.max_length + gamma + 1  # rejected and padding tokens are written behind the context
        self.caps = EngineCaps(max_width=gamma, ragged=Ragged.PADDED, draft_input=DraftInput.PROBS)
        self._runner = ModelRunner(model, max_num_seqs, room)
        context = PluginContext(
            caps=self.caps,
            vocab_size=self._runner.vocab_size,
            max_slots=max_num_seqs,
            max_length=room,
            device=self._runner.device,
            seed=settings.seed,
            tokenizer=tokenizer,
        )
        self._drafts = build_draft_stage(settings, self.registry, context)
        self._plans = build_plan_stage(settings, self.registry, context, self._drafts.metrics.fault)
        self._verifier = build_verifier(settings, self.registry, context)
        self._table = TokenTable(max_num_seqs, room, self._runner.vocab_size, self._runner.device)
        proposers = (settings.proposer, *settings.extra_proposers)
        self._intake = Intake(model, tokenizer, settings, proposers, self.max_length, self._runner.vocab_size)
        self._prefill_chunk = prefill_chunk
        self._waiting: deque[RequestState] = deque()
        self._running: list[RequestState] = []  # index is the row of the key-value cache
        self._by_id: dict[str, RequestState] = {}
        self._steps = 0
        self.last_step: StepCost | None = None

    # -- requests ------------------------------------------------------------------------------------------------

    def add(self, request: GenerateRequest) -> str:
        """Queue a request; return its id.

        Raises:
            RequestError: the request cannot be served as asked.
        """
        state = self._intake.accept(request)
        name = state.request.request_id
        if name in self._by_id:
            raise RequestError.build("duplicate request id", who="Engine.add", found=repr(name), expected="a new id")
        self._by_id[name] = state
        self._waiting.append(state)
        return name

    def abort(self, request_id: str) -> None:
        """End a request now, wherever it is; unknown and finished ids are ignored."""
        state = self._by_id.get(request_id)
        if state is None:
            return
        state.finish_reason = "abort"
        if state in self._waiting:
            self._waiting.remove(state)
            self._by_id.pop(request_id)
        else:
            self._release(state, Lifecycle.ABORTED)

    def preempt(self, request_id: str) -> None:
        """Take a running request's slot and cache row away and put it first in the queue; it resumes by itself."""
        state = self._by_id.get(request_id)
        if state is not None and state in self._running:
            self._vacate(state, Lifecycle.PREEMPTED)
            self._waiting.appendleft(state)

    def generate(self, requests: Sequence[GenerateRequest]) -> list[RequestOutput]:
        """Serve requests to their end; return their outputs in order."""
        order = [self.add(request) for request in requests]
        done = {out.request_id: out for out in self.run() if out.finished}
        return [done[name] for name in order]

    def run(self) -> Iterator[RequestOutput]:
        """Step until nothing is left; yield each request's news as it comes."""
        while self.has_work:
            yield from self.step()

    @property
    def has_work(self) -> bool:
        """Whether any request is running or waiting."""
        return bool(self._running or self._waiting)

    @property
    def metrics(self) -> Any:
        """The counters of this engine, a `specplug.metrics.SpecMetrics`."""
        return self._drafts.metrics

    @property
    def steps(self) -> int:
        """Decode steps so far: forward passes of the target that emitted tokens."""
        return self._steps

    def announce(self, kind: EngineEventKind) -> None:
        """Tell proposers that something happened to the whole engine, for instance that its weights changed."""
        self._drafts.on_event(EngineEvent(kind))

    def set_ceiling(self, width: int | None) -> None:
        """Bound the draft length while serving: 0 switches speculation off, None lifts the bound."""
        self._plans.ceiling = width

    def close(self) -> None:
        """Release proposers, threads and files."""
        self._drafts.close()

    # -- one step ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[RequestOutput]:
        """Run one engine step; return what is new for every request that emitted."""
        self._admit()
        self._prefill([state for state in self._running if state.pending > 1])
        decoding = [state for state in self._running if state.pending == 1]
        if not decoding:
            return []
        began = time.perf_counter()
        stats = HostStats(
            self._steps, tuple(s.stats() for s in decoding), num_waiting=len(self._waiting), last_step=self.last_step
        )
        plan = self._plans.plan(stats)
        batch = self._table.view(decoding)
        allowed = [min(plan.width_for(s.request.request_id), s.draft_cap(plan.width)) for s in decoding]
        caps = torch.tensor(allowed, dtype=torch.int32, device=self._runner.device)
        draft = self._drafts.propose(batch, plan.width, caps)
        draft = self._drafts.trim(batch, draft, plan.token_budget)
        draft = self._narrow(draft)
        logits = self._target_logits(decoding, draft)
        verification = self._verify(decoding, draft, logits)
        self._commit(decoding, draft, verification)
        self._steps += 1
        self.last_step = StepCost(
            requests=len(decoding),
            tokens=len(decoding) * (draft.width + 1),
            context_tokens=sum(s.length for s in decoding),
            width=draft.width,
            seconds=time.perf_counter() - began,
        )
        return self._outputs(decoding)

    def _narrow(self, draft: Draft) -> Draft:
        """On a CPU, where looking costs nothing, verify no more columns than the longest draft has."""
        if self._runner.device.type != "cpu":
            return draft
        longest = int(draft.lengths.max()) if draft.width else 0
        return draft.view(draft.batch_size, longest)

    def _target_logits(self, decoding: list[RequestState], draft: Draft) -> Tensor:
        """Feed each row's last token and its draft; return [B, N + 1, V] logits, processed as its request asks."""
        last = torch.tensor([[s.tokens[-1]] for s in decoding], dtype=torch.int64, device=self._runner.device)
        token_ids = torch.cat([last, draft.token_ids.long()], 1)
        token_ids = torch.where(token_ids < 0, last, token_ids)  # filler: any valid id, its logits count for nobody
        logits = self._runner.forward([s.row for s in decoding], [s.computed for s in decoding], token_ids)
        for index, state in enumerate(decoding):
            if state.processors is not None:
                drafted = draft.token_ids[index, : int(draft.lengths[index])].tolist()
                process_row(state.processors, state.tokens, drafted, logits[index])
        return logits

    def _verify(self, decoding: list[RequestState], draft: Draft, logits: Tensor) -> Verification:
        device = self._runner.device

        def column(name: str, dtype: torch.dtype) -> Tensor:
            return torch.tensor([getattr(s.params, name) for s in decoding], dtype=dtype, device=device)

        params = [s.params for s in decoding]
        sampling = SamplingBatch(
            temperature=column("temperature", torch.float32),
            top_k=column("top_k", torch.int64) if any(p.top_k for p in params) else None,
            top_p=column("top_p", torch.float32) if any(p.top_p < 1 for p in params) else None,
            min_p=column("min_p", torch.float32) if any(p.min_p for p in params) else None,
        )
        seeds = torch.tensor([s.seed for s in decoding], dtype=torch.int64, device=device)
        positions = torch.tensor([s.length for s in decoding], dtype=torch.int64, device=device)
        numbers = uniforms(seeds, positions, draft.width)
        return self._verifier.verify(draft, TargetLogits.dense(logits), sampling, numbers)

    def _commit(self, decoding: list[RequestState], draft: Draft, verification: Verification) -> None:
        """Append what was verified, roll back what was not, and report it."""
        emitted = [[token for token in row if token >= 0] for row in verification.token_ids.tolist()]
        after_stop = []
        for state, tokens, verified in zip(decoding, emitted, draft.lengths.tolist(), strict=True):
            start = state.length
            self._table.write(state.slot, start, tokens)
            after_stop.append(len(tokens) - state.extend(tokens))
            state.computed = start + len(tokens) - 1
            state.verified += verified
            state.accepted += len(tokens) - 1
            state.steps += 1
        after = self._table.view(decoding)
        behind = torch.tensor(after_stop, dtype=torch.int32, device=after.device)
        self._drafts.observe(
            replace(after, lengths=after.lengths + behind),
            Outcome(
                verified=draft.lengths,
                accepted=verification.num_accepted,
                emitted=verification.num_emitted,
                after_stop=behind,
            ),
        )

    def _outputs(self, decoding: list[RequestState]) -> list[RequestOutput]:
        outputs = []
        for state in decoding:
            outputs.append(RequestOutput.of(state))
            state.new_tokens, state.new_text = [], ""
            if state.finish_reason is not None:
                self._release(state, Lifecycle.FINISHED)
        return outputs

    # -- places --------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        while self._waiting and self._table.has_free_slot:
            state = self._waiting.popleft()
            state.slot, state.generation = self._table.take_slot(state.tokens)
            state.row, state.computed = len(self._running), 0
            self._running.append(state)
            self._tell(Lifecycle.RESUMED if state.was_running else Lifecycle.STARTED, state)
            state.was_running = True

    def _prefill(self, filling: list[RequestState]) -> None:
        """Put one chunk of each row's text, all but its last token, into the cache."""
        if not filling:
            return
        chunks = [s.tokens[s.computed : min(s.computed + self._prefill_chunk, s.length - 1)] for s in filling]
        longest = max(map(len, chunks))
        padded = torch.tensor([chunk + [0] * (longest - len(chunk)) for chunk in chunks], device=self._runner.device)
        self._runner.forward([s.row for s in filling], [s.computed for s in filling], padded, keep_logits=False)
        for state, chunk in zip(filling, chunks, strict=True):
            state.computed += len(chunk)

    def _release(self, state: RequestState, kind: Lifecycle) -> None:
        self._vacate(state, kind)
        self._by_id.pop(state.request.request_id)

    def _vacate(self, state: RequestState, kind: Lifecycle) -> None:
        """Free the slot and the cache row; the last row moves into the gap, so that rows in use stay neighbours."""
        self._tell(kind, state)
        self._table.give_back(state.slot)
        last = self._running.pop()
        if last is not state:
            self._runner.move(last.row, state.row)
            self._running[state.row] = last
            last.row = state.row
        state.slot = state.row = state.generation = -1
        state.computed = 0

    def _tell(self, kind: Lifecycle, state: RequestState) -> None:
        self._drafts.on_event(RequestEvent(kind, state.request, state.slot, state.generation))
