"""The verifier hook of vLLM's V2 runner, in the worker process.  Nothing is read back from the device.

Requests with a seed are decided by `SeededDecision`, the others by the server's verifier or, without one, by vLLM.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specplug.errors import EngineError
from specplug.types.caps import Distribution
from specplug.types.verification import SamplingBatch, TargetLogits
from specplug_vllm import seams
from specplug_vllm.worker.drafting import Drafting
from specplug_vllm.worker.verifier import Decide, ServerVerifier, chain, replace_in, wrap_method


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
                drafting.rules.draws_by_position = False
            return
        raise EngineError.build(
            "the served model verifies by itself",
            who="specplug_vllm",
            found=f"a {type(sampler).__name__} and the setting 'verifier'",
            remedy="Leave the setting out",
        )
    replace_in(module)
    decision = SeededDecision(sampler.sampler, None if verifier is None else V2Decision(verifier, drafting))
    engines_own = sampler._verify
    decided = wrap_method(decision, engines_own)

    def verify(*args: Any, **kwargs: Any) -> Any:
        decides = decision.begin(slots=args[6])  # idx_mapping_np
        return (decided if decides else engines_own)(*args, **kwargs)

    sampler._verify = verify


class SeededDecision:
    """Replacement of `rejection_sample` that decides the rows with a seed of their own.

    Args:
        sampler: V2's `Sampler`, of whose requests every rank knows the sampling parameters.
        others: decides the other rows; None is vLLM's own function.
    """

    def __init__(self, sampler: Any, others: V2Decision | None) -> None:
        self._states = sampler.sampling_states
        self._use_fp64 = bool(sampler.use_fp64_gumbel)
        self._others = others
        self._rows = np.zeros(0, bool)

    def begin(self, slots: Any) -> bool:
        """Note which rows of the next call, by their slots (numpy), have a request with a seed that is not greedy.

        Return whether any row is not the engine's to decide.
        """
        temperature = self._states.temperature.np[slots]
        self._rows = self._states.seeds_set[slots] & (temperature > 0)
        if self._others is None:
            return bool(self._rows.any())
        self._rows &= ~self._others.opted_rows(slots)
        self._others.all_greedy = not temperature.any()
        return True

    def __call__(self, original: Decide, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return the tokens that each of B rows emits, [B, K + 1] int64, and their number, [B] int32.

        The positional arguments are described in `V2Decision`.
        """
        decide = original if self._others is None else partial(self._others, original)
        if not self._rows.any():
            return decide(*args, **kwargs)  # type: ignore[no-any-return]
        tokens, counts = self._drawn(*args)
        if self._rows.all() or (self._others is None and args[1] is None):
            return tokens, counts  # rows without a seed may be decided so, too, if their drafts are one-hot
        chosen = torch.from_numpy(self._rows)
        if tokens.is_cuda:
            chosen = chosen.pin_memory().to(tokens.device, non_blocking=True)
        other_tokens, other_counts = decide(*args, **kwargs)
        return torch.where(chosen[:, None], tokens, other_tokens), torch.where(chosen, counts, other_counts)

    def _drawn(
        self,
        target_logits: Tensor,
        _draft_logits: Tensor | None,
        draft_sampled: Tensor,
        cu_num_logits: Tensor,
        pos: Tensor,
        _idx_mapping: Tensor,
        expanded_idx_mapping: Tensor,
        _expanded_local_pos: Tensor,
        temperature: Tensor,
        seed: Tensor,
        num_speculative_steps: int,
        *_: Any,
    ) -> tuple[Tensor, Tensor]:
        """Draw every row's tokens as plain decoding does, by seed and position; keep those that its draft has."""
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
        return keep_drawn(drawn, draft_sampled, cu_num_logits, num_speculative_steps)


def keep_drawn(drawn: Tensor, draft_sampled: Tensor, cu_num_logits: Tensor, draft_length: int) -> tuple[Tensor, Tensor]:
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
    starts = cu_num_logits[:-1, None]
    lengths = cu_num_logits.diff()[:, None]
    index = (starts + places).clamp_(max=len(drawn) - 1)
    tokens = drawn[index]
    fits = (tokens[:, :-1] == draft_sampled[index[:, 1:]]) & (places[1:] < lengths)
    return tokens, fits.cumprod(1, dtype=torch.int32).sum(1, dtype=torch.int32) + 1


class V2Decision:
    """Replacement of `rejection_sample` by the server's verifier.

    Attributes:
        all_greedy: whether every row is greedy, as known on the host.
    """

    def __init__(self, verifier: ServerVerifier, drafting: Drafting | None) -> None:
        self.all_greedy = False
        self._verifier = verifier
        self._drafting = drafting
        self._known = -1
        self._requested = False

    def __call__(self, original: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return the tokens that each of B rows emits, [B, K + 1] int64, and their number, [B] int32.

        The positional arguments are those of vLLM's function: target_logits [L, V], processed, temperature included,
        row i's from `cu_num_logits[i]` on; draft_logits [S, K, V] by slot, before temperature, or None for one-hot
        drafts; draft_sampled [L], the input token of each position: a row's last token, then its drafts, where -1 is no
        draft; cu_num_logits [B + 1] int32; pos [L] int64, the position of each token in draft_sampled; idx_mapping [B]
        int32, the slots; two by position; temperature and seed, [S] by slot; num_speculative_steps, K.
        """
        target_logits, draft_logits, draft_sampled, cu_num_logits, pos, idx_mapping = args[:6]
        temperature, seed, num_speculative_steps = args[8:11]
        if not self._verifier.lossless and not self._is_requested():
            return original(*args, **kwargs)  # type: ignore[no-any-return]
        slots = idx_mapping.long()
        starts = cu_num_logits[:-1].long()
        length = min(num_speculative_steps, len(target_logits) - len(slots))  # longest possible draft
        positions = torch.arange(length, device=slots.device)
        index = starts[:, None] + 1 + positions
        following = draft_sampled[index.clamp(max=len(target_logits) - 1)]
        draft = chain(torch.where(index < cu_num_logits[1:, None], following, -1), pos[starts] + 1)
        row_temperature = temperature[slots].float()
        if draft_logits is not None and not self.all_greedy:  # with temperature applied as in the target's logits
            logits = (
                draft_logits[slots, :length] / torch.where(row_temperature == 0, 1.0, row_temperature)[:, None, None]
            )
            draft = replace(draft, distribution=Distribution.LOGITS, draft_logits=logits)
        chosen = thresholds = None
        if not self._verifier.lossless and self._drafting is not None:
            chosen, thresholds = self._drafting.slots.verifiers(slots)
        sampling = SamplingBatch(
            (row_temperature != 0).float(),
            acceptance_threshold=thresholds,
            all_greedy=self.all_greedy,
        )
        verification = self._verifier.verify(draft, TargetLogits(target_logits, starts), sampling, seed[slots])
        sampled = torch.zeros(len(slots), num_speculative_steps + 1, dtype=torch.int64, device=slots.device)
        sampled[:, : length + 1] = verification.token_ids.clamp(min=0)
        if chosen is None:
            return sampled, verification.num_emitted
        engine_sampled, num_engine_sampled = original(*args, **kwargs)
        if verification.departed is not None:
            assert self._drafting is not None
            self._drafting.stage.metrics.lossy.add(verification.num_accepted * chosen, verification.departed * chosen)
        return torch.where(chosen[:, None], sampled, engine_sampled), torch.where(
            chosen, verification.num_emitted, num_engine_sampled
        )

    def opted_rows(self, slots: Any) -> Any:
        """Return [B] bool (numpy), true where the request in a slot has enabled a lossy verifier."""
        chosen = np.zeros(len(slots), bool)
        if not self._verifier.lossless and self._is_requested():
            assert self._drafting is not None
            occupants = self._drafting.slots.occupants
            chosen[:] = [
                slot in occupants and occupants[slot].request.options.verifier is not None for slot in slots.tolist()
            ]
        return chosen

    def _is_requested(self) -> bool:
        """Return whether any running request enables the verifier, which the host knows."""
        assert self._drafting is not None  # lossy verifiers do not serve on several ranks
        slots = self._drafting.slots
        if slots.version != self._known:
            self._known = slots.version
            running = [occupant.request.options for occupant in slots.occupants.values()]
            self._requested = any(options.verifier is not None for options in running)
        return self._requested
