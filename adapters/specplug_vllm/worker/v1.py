"""The drafter of vLLM's V1 runner (``custom_class``): runs in the worker, on the CPU, with exact lengths per request.

The runner keeps its token table in host memory and passes sampled tokens as lists, so drafting runs on the CPU whatever
the engine's device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.grammar.drafts import SOURCE, verdict_on_forced
from specplug.pipeline.stream.buffers import DraftOutputs, EngineRows
from specplug.runtime.first_step import started
from specplug.runtime.slots import RowFacts
from specplug.runtime.stream_steps import StreamSteps
from specplug.seams.hook import hook
from specplug.types.batch import EngineBatch
from specplug.types.draft import Draft
from specplug.types.plan import NO_SPECULATION
from specplug.types.verdict import Outcome
from specplug.verify.draft_distribution import write_probs
from specplug_vllm import seams, step_metadata
from specplug_vllm.startup import engine_config, recurrent
from specplug_vllm.worker import hooks, status, verifier, verifier_v1, workarounds
from specplug_vllm.worker.drafting import Drafting, ranks

_CPU = torch.device("cpu")


class V1Proposer:
    """specplug as vLLM's V1 runner sees it.  ``speculative_config.model`` names this class.

    Attributes:
        drafting: on tensor-parallel rank 0; None on other ranks, whose drafts vLLM never reads.
        verifier: on every rank, the verifier that replaces the engine's; None if the engine verifies.
    """

    def __init__(self, vllm_config: Any) -> None:
        engine_config.require_installed()
        seams.require("v1")
        workarounds.install()
        self.drafting = Drafting(vllm_config, _CPU, rank=0) if ranks().leads else None
        device = torch.device(vllm_config.device_config.device)
        self._draft_probs = None if self.drafting is None else self.drafting.engine_distributions(device)
        if self.drafting is not None:
            hooks.reserve_memory(self.drafting)
        self._steps = None if self.drafting is None else Steps(self.drafting, self._state_distribution)
        self._runner: Any = None
        self.verifier = verifier.build(vllm_config, device)
        status.install_worker()
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # which the runner has imported

        hook(GPUModelRunner, "execute_model", hooks.execute_model)

    def load_model(self, *_: Any, **__: Any) -> None:
        """Do nothing: specplug loads nothing after the target."""

    def before_step(self, runner: Any, _scheduler_output: Any) -> None:
        """Store the runner, which vLLM does not pass to drafters; called by the lifecycle hook."""
        if self._runner is not None:
            return
        self._runner = runner
        if recurrent.is_recurrent(runner.vllm_config):
            recurrent.install_v1_worker(runner)
        if self.verifier is not None:
            verifier_v1.install(runner, self.verifier, self.drafting)
        if self.drafting is not None:
            hooks.install_events(runner, self.drafting)
            self.drafting.text_of = partial(_text_of, runner)
            # vLLM's limit skips drafting for the whole batch when one row nears the maximum context length.  specplug
            # bounds each row by its own room instead.
            runner.effective_drafter_max_model_len = runner.max_model_len + runner.num_spec_tokens

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, *_: Any, **__: Any
    ) -> list[list[int]]:
        """Return each row's draft ids; of a step without drafts an empty list, whose rows vLLM then leaves as they are.

        Args:
            sampled_token_ids: per row, the tokens that the step emitted; empty for prefill chunks.
            num_tokens_no_spec: [R] ints, tokens per row, sampled ones included.
            token_ids_cpu: [R, L] int32, the runner's token table, by row.
        """
        if self.drafting is None or self._steps is None or self._runner is None:
            return []
        names = self._runner.input_batch.req_ids[: len(sampled_token_ids)]
        if self.drafting.is_idle and self._steps.skip(names, sampled_token_ids):
            return []
        drafts = self._steps.draft(names, sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        return [] if self.drafting.is_idle else drafts

    def _state_distribution(self, draft: Draft, names: tuple[str, ...]) -> None:
        """Pass the distribution that drafts were drawn from to the rejection sampler; without one they are one-hot."""
        if draft.draft_probs is not None:
            buffer = draft.draft_probs
            if self._draft_probs is not None:
                buffer = self._draft_probs[: draft.batch_size, : draft.draft_length]
            write_probs(buffer, draft)
            self._runner._draft_probs = buffer
            self._runner._draft_prob_req_ids = list(names)


def _text_of(runner: Any, request_id: str) -> npt.NDArray[np.int32]:
    """Return the row of the token table that a request has just got, up to its end."""
    batch = runner.input_batch
    row = batch.req_id_to_index[request_id]
    text: npt.NDArray[np.int32] = batch.token_ids_cpu[row, : batch.num_tokens_no_spec[row]]
    return text


Sampled = Sequence[Sequence[int]]
"""Per row of the engine, the tokens that a step emitted; empty for prefill chunks."""


class Steps:
    """Takes the steps of one worker: compiled ones where they cover the draft stage, otherwise the stage's own.

    Args:
        drafting: the worker's drafting, on the CPU.
        notify: called with drafts that may carry distributions, and the names of their rows.
    """

    def __init__(self, drafting: Drafting, notify: Callable[[Draft, tuple[str, ...]], None]) -> None:
        self._drafting, self._notify = drafting, notify
        self._emitted, self._rejected = np.zeros((2, drafting.max_slots), np.int32)
        self._wrapped: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], EngineRows] | None = None
        self._compiled: StreamSteps | None = None
        if StreamSteps.applies(drafting.stage):
            runner = drafting.stage.runners[0]
            handle = runner.handle
            self._compiled = started(self._start)
            if self._compiled is None:  # the stage takes all steps, without the intake of those that did not start
                runner.handle = handle

    def _start(self) -> StreamSteps:
        drafting = self._drafting
        ids = torch.zeros(1, drafting.caps.max_draft_length, dtype=torch.int32)
        like = self._wrap(1, self._emitted, ids.numpy())
        given = drafting.slots, drafting.max_length, drafting.vocab_size, _CPU
        steps = StreamSteps(drafting.stage, *given, like=(like, DraftOutputs(ids)))
        drafting.close_by(steps.close)
        return steps

    def skip(self, names: list[str], sampled: Sampled) -> bool:
        """Count a step of rows `names` that neither verifies nor makes drafts; return False if it must be taken."""
        if self._compiled is not None and not self._compiled.skip(self._drafting.facts_of(names)):
            return False
        self._drafting.count(names, sampled)
        return True

    def draft(
        self, names: list[str], sampled: Sampled, num_tokens: npt.NDArray[np.int32], table: npt.NDArray[np.int32]
    ) -> list[list[int]]:
        """Report the verified step and draft for the next one; return the draft ids of each row of the engine.

        Args:
            names: the engine's rows.
            sampled: what the step emitted.
            num_tokens: [R], tokens of each row, sampled ones included.
            table: [R, L], the runner's token table, by row.
        """
        facts = self._drafting.facts_of(names)
        if not facts.names:
            return []
        rows = self._engine_rows(names, sampled, num_tokens, table)
        drafts = self._of_stage(facts, rows) if self._compiled is None else self._of(self._compiled, facts, rows)
        if facts.kept is None:
            return drafts
        found: list[list[int]] = [[] for _ in names]
        for row, ids in zip(facts.kept, drafts, strict=True):
            found[row] = ids
        return found

    def _engine_rows(
        self, names: list[str], sampled: Sampled, num_tokens: npt.NDArray[np.int32], table: npt.NDArray[np.int32]
    ) -> EngineRows:
        """Write down what the step emitted and rejected; wrap the runner's arrays, which it keeps."""
        size, scheduled, known = len(names), self._drafting.scheduled, self._wrapped
        if known is None or known[0] is not num_tokens or known[1] is not table or len(known[2].idx_mapping) != size:
            known = self._wrapped = num_tokens, table, self._wrap(size, num_tokens, table)
        emitted, rejected = self._emitted[:size], self._rejected[:size]
        emitted[:] = list(map(len, sampled))
        rejected[:] = 0
        if scheduled:
            rejected += list(map(len, map(scheduled.get, names, repeat(()))))
            np.maximum(rejected - emitted + 1, 0, out=rejected)
        return known[2]

    def _wrap(self, size: int, num_tokens: npt.NDArray[np.int32], table: npt.NDArray[np.int32]) -> EngineRows:
        return EngineRows(
            idx_mapping=torch.arange(size),
            total_len=torch.from_numpy(num_tokens),
            all_token_ids=torch.from_numpy(table),
            num_sampled=torch.from_numpy(self._emitted[:size]),
            num_rejected=torch.from_numpy(self._rejected[:size]),
            lengths_by_row=True,
        )

    def _of(self, steps: StreamSteps, facts: RowFacts, rows: EngineRows) -> list[list[int]]:
        """Take a compiled step; return the drafts of the rows that may draft, empty ones if it fails."""
        drafting = self._drafting
        grammars, plan = drafting.grammars, NO_SPECULATION if drafting.is_idle else drafting.plan
        cut = [grammars[name].cut if name in grammars else 0 for name in facts.names] if grammars else ()
        found: list[list[int]] = []

        def step() -> None:
            launched = steps.launch(facts, rows, plan, cut_by_grammar=cut)
            found.extend(launched.lists(plan.draft_length))
            steps.drop(launched)

        if grammars:
            self._count_forced(facts, rows)
        return found if steps.attempt(facts, step) else [[] for _ in facts.names]

    @torch.inference_mode()
    def _count_forced(self, facts: RowFacts, rows: EngineRows) -> None:
        """Count the tokens that grammars drafted, which compiled steps do not see."""
        outcome = self._outcome(facts, self._batch(facts, rows), rows)
        if outcome.forced is not None:
            self._drafting.stage.metrics.record_added(SOURCE, *verdict_on_forced(outcome))

    @torch.inference_mode()
    def _of_stage(self, facts: RowFacts, rows: EngineRows) -> list[list[int]]:
        """Let the draft stage take a step; return the drafts of the rows that may draft."""
        drafting, batch = self._drafting, self._batch(facts, rows)
        draft = drafting.step(batch, self._outcome(facts, batch, rows), drafting.slots.rows(batch.slots).caps)
        self._notify(draft, facts.names)
        return [ids[:count] for ids, count in zip(draft.token_ids.tolist(), draft.lengths.tolist(), strict=True)]

    def _batch(self, facts: RowFacts, rows: EngineRows) -> EngineBatch:
        slots, places = torch.tensor(facts.slots), _kept(facts, rows.idx_mapping)
        of_slots, lengths = self._drafting.slots.rows(slots), rows.total_len[places]
        return EngineBatch(
            slots=slots,
            generations=of_slots.generations,
            rows=places,
            tokens=rows.all_token_ids,
            lengths=lengths,
            sampled=rows.num_sampled[places] > 0,
            room=of_slots.ends - lengths,
            temperature=torch.tensor([request.temperature for request in facts.requests]),
            grammar=of_slots.grammar,
            vocab_size=self._drafting.vocab_size,
            reset_slots=() if self._compiled is not None else self._drafting.slots.take_resets(),
            barriers=facts.barriers,
            request_ids=facts.names,
            requests=facts.requests,
        )

    def _outcome(self, facts: RowFacts, batch: EngineBatch, rows: EngineRows) -> Outcome:
        drafting, emitted = self._drafting, rows.num_sampled[batch.rows]
        slot_rows = drafting.slots.rows(batch.slots)
        accepted = (emitted - 1).clamp(min=0)
        outcome = Outcome(
            verified=torch.where(emitted > 0, accepted + rows.num_rejected[batch.rows], 0),
            accepted=accepted,
            emitted=emitted,
            after_stop=drafting.stops.after(batch.tokens, batch.rows, batch.slots, batch.lengths, emitted, slot_rows),
        )
        return step_metadata.annotated(drafting.grammars, outcome, facts.names, drafting.scheduled)


def _kept(facts: RowFacts, places: Tensor) -> Tensor:
    """Return those of the engine's rows `places` that may draft."""
    return places if facts.kept is None else places[facts.kept]
