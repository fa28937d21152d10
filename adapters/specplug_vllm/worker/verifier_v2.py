"""The verifier hook of vLLM's V2 runner, in the worker process.  Nothing is read back from the device.

Requests with a seed are decided by `Coupled`, the others by the server's verifier or, without one, by vLLM.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specplug.errors import EngineError
from specplug.runtime.slots import SlotRows
from specplug.types.caps import Distribution
from specplug.types.draft import Draft
from specplug.types.verification import SamplingBatch, TargetLogits
from specplug_vllm import seams
from specplug_vllm.worker.drafting import Drafting
from specplug_vllm.worker.verifier import Decide, ServerVerifier, chain, decided_by, replace_in


class Coupled:
    """Decides the rows with a seed of their own.

    Args:
        sampler: V2's `Sampler`, of whose requests every rank knows the sampling parameters.
    """

    def __init__(self, sampler: Any) -> None:
        self._states, self._use_fp64 = sampler.sampling_states, bool(sampler.use_fp64_gumbel)

    def rows(self, slots: Any) -> Any:
        """Return [B] bool (numpy), true where the request in a slot has a seed and is not greedy."""
        return self._states.seeds_set[slots] & (self._states.temperature.np[slots] > 0)

    def decide(
        self,
        target_logits: Tensor,
        draft_sampled: Tensor,
        cu_num_logits: Tensor,
        pos: Tensor,
        expanded_idx_mapping: Tensor,
        temperature: Tensor,
        seed: Tensor,
        num_speculative_steps: int,
    ) -> tuple[Tensor, Tensor]:
        """Return the tokens that each of B rows emits, [B, K + 1] int64, and their number, [B] int32.

        The arguments are those of vLLM's `rejection_sample`.
        """
        from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

        drawn = gumbel_sample(
            target_logits,
            expanded_idx_mapping,
            temperature,
            seed,
            pos,
            apply_temperature=False,
            is_drafting=False,
            use_fp64=self._use_fp64,
        )
        return kept(drawn, draft_sampled, cu_num_logits, num_speculative_steps)


def kept(drawn: Tensor, draft_sampled: Tensor, cu_num_logits: Tensor, draft_length: int) -> tuple[Tensor, Tensor]:
    """Keep each row's drawn tokens up to the first that its draft does not have.  Reads nothing back.

    Args:
        drawn: [L] int64, the token drawn at each position.
        draft_sampled: [L], the input token of each position: a row's last token, then its draft.
        cu_num_logits: [B + 1] int32, where each row's positions begin.
        draft_length: K, the longest draft.

    Returns:
        [B, K + 1] int64, of which a row's number of tokens, [B] int32, are emitted.
    """
    places = torch.arange(draft_length + 1, device=drawn.device)
    starts, lengths = cu_num_logits[:-1, None], cu_num_logits.diff()[:, None]
    index = (starts + places).clamp_(max=len(drawn) - 1)
    tokens = drawn[index]
    fits = (tokens[:, :-1] == draft_sampled[index[:, 1:]]) & (places[1:] < lengths)
    return tokens, fits.cumprod(1, dtype=torch.int32).sum(1, dtype=torch.int32) + 1


def install(runner: Any, verifier: ServerVerifier | None, drafting: Drafting | None) -> None:
    """Replace a runner's verification.  Lossy verifiers read requests' options from `drafting`.

    Raises:
        EngineError: the served model uses its own rejection sampler, and the server's settings name a verifier.
    """
    import vllm.v1.worker.gpu.spec_decode.rejection_sampler as module

    seams.require("verifier v2")
    sampler = runner.rejection_sampler
    if type(sampler) is not module.RejectionSampler:
        if verifier is None:
            if drafting is not None:
                drafting.drafts_seeded = False
            return
        raise EngineError.build(
            "the served model verifies by itself",
            who="specplug_vllm",
            found=f"a {type(sampler).__name__} and the setting 'verifier'",
            remedy="Leave the setting out",
        )
    replace_in(module)
    others = None if verifier is None else V2Decision(verifier, drafting)
    decision = SeededDecision(Coupled(sampler.sampler), others)
    engines_own = decided_by(decision, sampler._verify)
    temperature = sampler.sampler.sampling_states.temperature.np

    def verify(
        logits: Any,
        draft_logits: Any,
        draft_sampled: Any,
        pos: Any,
        cu_num_logits: Any,
        idx_mapping: Any,
        idx_mapping_np: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        decision.begin(idx_mapping_np)
        if others is not None:
            others.all_greedy = not temperature[idx_mapping_np].any()
        return engines_own(
            logits, draft_logits, draft_sampled, pos, cu_num_logits, idx_mapping, idx_mapping_np, *args, **kwargs
        )

    sampler._verify = verify


class SeededDecision:
    """Replacement of `rejection_sample` that decides the rows with a seed, and leaves the others to `others`.

    Args:
        coupled: decides rows with a seed.
        others: decides the others; None is vLLM's own function.
    """

    def __init__(self, coupled: Coupled, others: V2Decision | None) -> None:
        self._coupled, self._others = coupled, others
        self._rows: Any = None

    def begin(self, slots: Any) -> None:
        """Note the rows of the next call, by their slots (numpy)."""
        self._rows = self._coupled.rows(slots)
        if self._others is not None:
            self._rows &= ~self._others.opted_in(slots)

    def __call__(
        self,
        original: Decide,
        target_logits: Tensor,
        draft_logits: Tensor | None,
        draft_sampled: Tensor,
        cu_num_logits: Tensor,
        pos: Tensor,
        idx_mapping: Tensor,
        expanded_idx_mapping: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Return the tokens that each of B rows emits, [B, K + 1] int64, and their number, [B] int32."""
        rows = target_logits, draft_logits, draft_sampled, cu_num_logits, pos, idx_mapping, expanded_idx_mapping
        decide = original if self._others is None else partial(self._others, original)
        if not self._rows.any():
            return decide(*rows, *args, **kwargs)  # type: ignore[no-any-return]
        _, temperature, seed, draft_length = args[:4]
        step = target_logits, draft_sampled, cu_num_logits, pos, expanded_idx_mapping, temperature, seed, draft_length
        tokens, counts = self._coupled.decide(*step)
        if self._rows.all() or (self._others is None and draft_logits is None):
            return tokens, counts  # rows without a seed may be coupled as well
        chosen = torch.from_numpy(self._rows)
        if tokens.is_cuda:
            chosen = chosen.pin_memory().to(tokens.device, non_blocking=True)
        other_tokens, other_counts = decide(*rows, *args, **kwargs)
        return torch.where(chosen[:, None], tokens, other_tokens), torch.where(chosen, counts, other_counts)


class V2Decision:
    """Replacement of `rejection_sample` by the server's verifier.

    Attributes:
        all_greedy: whether every row is greedy, as known on the host.
    """

    def __init__(self, verifier: ServerVerifier, drafting: Drafting | None) -> None:
        self.all_greedy = False
        self._verifier, self._drafting = verifier, drafting
        self._known, self._requested = -1, False

    def __call__(
        self,
        original: Any,
        target_logits: Tensor,
        draft_logits: Tensor | None,
        draft_sampled: Tensor,
        cu_num_logits: Tensor,
        pos: Tensor,
        idx_mapping: Tensor,
        expanded_idx_mapping: Tensor,
        expanded_local_pos: Tensor,
        temperature: Tensor,
        seed: Tensor,
        num_speculative_steps: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Return the tokens that each of B rows emits, [B, K + 1] int64, and their number, [B] int32.

        Args:
            target_logits: [L, V], processed, temperature included; row i's start at `cu_num_logits[i]`.
            draft_logits: [S, K, V] by slot, before temperature; None for one-hot drafts.
            draft_sampled: [L], the input token of each position: a row's last token, then its drafts; -1 is no draft.
            cu_num_logits: [B + 1] int32.
            pos: [L] int64, the position of each token in `draft_sampled`.
            idx_mapping: [B] int32, the slots.
            temperature, seed: [S] by slot.
            num_speculative_steps: K.
        """

        def engines_own() -> tuple[Tensor, Tensor]:
            return original(  # type: ignore[no-any-return]
                target_logits,
                draft_logits,
                draft_sampled,
                cu_num_logits,
                pos,
                idx_mapping,
                expanded_idx_mapping,
                expanded_local_pos,
                temperature,
                seed,
                num_speculative_steps,
                *args,
                **kwargs,
            )

        if not self._verifier.lossless and not self._is_requested():
            return engines_own()
        slots, starts = idx_mapping.long(), cu_num_logits[:-1].long()
        most = min(num_speculative_steps, len(target_logits) - len(slots))  # longest possible draft
        positions = torch.arange(most, device=slots.device)
        index = starts[:, None] + 1 + positions
        following = draft_sampled[index.clamp(max=len(target_logits) - 1)]
        draft = chain(torch.where(index < cu_num_logits[1:, None], following, -1), pos[starts] + 1)
        heat = temperature[slots].float()
        if draft_logits is not None and not self.all_greedy:
            draft = _with_distribution(draft, draft_logits[slots, :most], heat)
        rows = None if self._verifier.lossless else self._rows(slots)
        sampling = SamplingBatch(
            (heat != 0).float(),
            acceptance_threshold=None if rows is None else rows.acceptance_threshold,
            all_greedy=self.all_greedy,
        )
        found = self._verifier.verify(draft, TargetLogits(target_logits, starts), sampling, seed[slots])
        sampled = torch.zeros(len(slots), num_speculative_steps + 1, dtype=torch.int64, device=slots.device)
        sampled[:, : most + 1] = found.token_ids.clamp(min=0)
        if rows is None:
            return sampled, found.num_emitted
        engine_sampled, num_engine_sampled = engines_own()
        chosen = rows.verifier
        if found.departed is not None:
            assert self._drafting is not None
            self._drafting.stage.metrics.lossy.add(found.num_accepted * chosen, found.departed * chosen)
        return torch.where(chosen[:, None], sampled, engine_sampled), torch.where(
            chosen, found.num_emitted, num_engine_sampled
        )

    def opted_in(self, slots: Any) -> Any:
        """Return [B] bool (numpy), true where the request in a slot has enabled a lossy verifier."""
        found = np.zeros(len(slots), bool)
        if not self._verifier.lossless and self._is_requested():
            assert self._drafting is not None
            held = self._drafting.slots.occupants
            found[:] = [slot in held and held[slot].request.options.verifier is not None for slot in slots.tolist()]
        return found

    def _is_requested(self) -> bool:
        """Return whether any running request enables the verifier, which the host knows."""
        assert self._drafting is not None  # lossy verifiers do not serve on several ranks
        slots = self._drafting.slots
        if slots.version != self._known:
            self._known = slots.version
            running = [occupant.request.options for occupant in slots.occupants.values()]
            self._requested = any(options.verifier is not None for options in running)
        return self._requested

    def _rows(self, slots: Tensor) -> SlotRows:
        assert self._drafting is not None  # lossy verifiers do not serve on several ranks
        return self._drafting.slots.rows(slots)


def _with_distribution(draft: Draft, draft_logits: Tensor, temperature: Tensor) -> Draft:
    """Add the distribution that the draft was drawn from, with temperature applied as in the target's logits."""
    heat = torch.where(temperature == 0, 1.0, temperature)[:, None, None]
    return replace(draft, distribution=Distribution.LOGITS, draft_logits=draft_logits / heat)
