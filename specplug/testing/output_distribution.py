"""Exact distribution of a verifier's output, computed by integrating its real code over all its random numbers.

On a tiny vocabulary a verifier is a step function of its random numbers: it only compares them with acceptance ratios
and cumulative probabilities.  The unit cube is cut along all those thresholds, on every axis alike, so that a verifier
that uses a number for the wrong purpose is integrated exactly, too.  The verifier runs once at the middle of every
cell, with all cells as rows of one batch, and each result is weighted by its cell's volume.  There is no sampling
error: a lossless verifier's distribution equals the target's up to rounding.

The thresholds are those of the case's own draft distribution and of its target, with all its filters and with each of
them left out.  A verifier that uses another distribution has other thresholds, which the cells miss, and could even
pass.  To detect such a mistake reliably, name that distribution in `Case.judged_by`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from specplug.interfaces import Verifier
from specplug.testing.batches import move_to
from specplug.types.caps import Distribution
from specplug.types.draft import NO_TOKEN
from specplug.types.step import Draft
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms, Verification
from specplug.verify.target import target_probs

Chain = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A language model on a tiny vocabulary: logits for every context of up to `depth` tokens.

    `levels` has one [V ** j, V] float64 per j < depth; contexts count up in base V, the first token most significant.
    """

    levels: tuple[Tensor, ...]

    @classmethod
    def random(cls, vocab: int, depth: int, seed: int, scale: float = 1.5) -> TinyModel:
        """Draw independent normal logits of standard deviation `scale`."""
        generator = torch.Generator().manual_seed(seed)
        shapes = [(vocab**level, vocab) for level in range(depth)]
        return cls(tuple(torch.randn(s, generator=generator, dtype=torch.float64) * scale for s in shapes))

    @property
    def vocab(self) -> int:
        """V."""
        return self.levels[0].shape[1]

    def read_logits(self, tokens: Chain) -> Tensor:
        """Return [len(tokens) + 1, V], the logits before, between and after `tokens`."""
        codes = itertools.accumulate(tokens, lambda code, token: code * self.vocab + token, initial=0)
        return torch.stack([self.levels[place][code] for place, code in enumerate(codes)])


@dataclass(frozen=True, slots=True)
class Knobs:
    """One request's sampling parameters."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def rows(self, count: int) -> SamplingBatch:
        """Return the sampling parameters of `count` rows."""
        return SamplingBatch(
            temperature=torch.full((count,), self.temperature),
            top_k=torch.full((count,), self.top_k),
            top_p=torch.full((count,), self.top_p, dtype=torch.float64),
            min_p=torch.full((count,), self.min_p, dtype=torch.float64),
        )

    def with_a_filter_off(self) -> list[Knobs]:
        """Return the parameters that a verifier would use that ignores top-k, top-p or min-p, for each that is on."""
        others = [replace(self, top_k=0), replace(self, top_p=1.0), replace(self, min_p=0.0)]
        return [other for other in others if other != self]

    def distribution(self, logits: Tensor) -> Tensor:
        """Return the distributions [P, V] float64 at the positions of `logits` [P, V]."""
        rows = self.rows(logits.shape[0])
        return target_probs(logits, rows.temperature, rows.top_k, rows.top_p, rows.min_p).double()


@dataclass(frozen=True, slots=True)
class Case:
    """Input of a verifier: a target, and drafts that are fixed or drawn from a draft model.

    Attributes:
        target: the target model; its depth is the draft buffer's length, padding included, plus one.
        knobs: sampling parameters of the target.
        drafted: the fixed draft; None when drafts are drawn from `draft_model`.
        draft_model: the draft model; its depth is the length of the drafts.
        drawn: whether each token is drawn from `draft_model`; the others are those of `drafted`, although the draft
            states a distribution for them, too.  Empty: all are drawn.
        draft_vocab: ids that drafts are drawn from, in the order of their columns; None: the whole vocabulary.
        distribution: the distribution that the draft declares: LOGITS or PROBS for a draft model.
        padding: tokens in the draft's buffers beyond its length; the target's logits there are meaningless.
        judged_by: distributions [N, V] that a wrong verifier may use as the draft distribution, as functions of the
            true one.  They add thresholds, so that such a verifier is integrated exactly, too.
    """

    target: TinyModel
    knobs: Knobs = field(default_factory=Knobs)
    drafted: Chain | None = None
    draft_model: TinyModel | None = None
    drawn: tuple[bool, ...] = ()
    draft_vocab: Chain | None = None
    distribution: Distribution = Distribution.ONE_HOT
    padding: Chain = ()
    judged_by: tuple[Callable[[Tensor], Tensor], ...] = ()

    @property
    def horizon(self) -> int:
        """Return the number of tokens that the distribution covers."""
        return len(self.target.levels)


def target_distribution(case: Case) -> Tensor:
    """Return [V ** horizon] float64, the distribution of the target's own next tokens."""
    return _continue(case, torch.ones(1, dtype=torch.float64), _nothing(case))


def emitted_distribution(verifier: Verifier, case: Case, *, device: str = "cpu") -> Tensor:
    """Return [V ** horizon] float64, the distribution of the verifier's output continued by the target's own.

    The verifier gets tensors on `device`.  Mass of malformed results (ids outside the vocabulary, none or too many of
    them) is missing from it.
    """
    arrived = _nothing(case)
    for chain, chance in _drafts(case):
        cells, weights = _cells(case, chain)
        verdict = move_to(verifier.verify(*(move_to(it, device) for it in _arguments(case, chain, cells))), "cpu")
        _collect(verdict, weights * chance, arrived, case.target.vocab)
    return _continue(case, torch.zeros(1, dtype=torch.float64), arrived)


def distribution_error(verifier: Verifier, case: Case, *, device: str = "cpu") -> float:
    """Return the largest difference between the two distributions over all outcomes; 0 up to rounding if lossless."""
    return float((emitted_distribution(verifier, case, device=device) - target_distribution(case)).abs().max())


def _drafts(case: Case) -> Iterator[tuple[Chain, float]]:
    """Yield every possible draft and its probability."""
    if case.draft_model is None:
        yield case.drafted or (), 1.0
        return
    ids = range(case.target.vocab)
    fixed = zip(case.drawn, case.drafted or (), strict=True)
    places = [ids if drawn else (token,) for drawn, token in fixed] or [ids] * len(case.draft_model.levels)
    for chain in itertools.product(*places):
        chance = float(_draft_distribution(case, chain)[range(len(chain)), chain].prod())
        if chance > 0:
            yield chain, chance


def _draft_distribution(case: Case, chain: Chain) -> Tensor:
    """Return [N, V] float64, the distributions of the tokens of `chain`: one-hot where they are not drawn."""
    one_hot = _one_hot(chain, case.target.vocab)
    if case.draft_model is None:
        return one_hot
    drawn = torch.tensor(case.drawn or (True,) * len(chain))
    return torch.where(drawn[:, None], _stated_distribution(case, chain), one_hot)


def _stated_distribution(case: Case, chain: Chain) -> Tensor:
    """Return [N, V] float64, the distributions that the draft model states for the tokens of `chain`."""
    return Knobs(case.knobs.temperature).distribution(_draft_logits(case, chain))


def _draft_logits(case: Case, chain: Chain) -> Tensor:
    """Return [N, V] float64, the draft logits for `chain`, minus infinity outside the draft vocabulary."""
    assert case.draft_model is not None
    logits = case.draft_model.read_logits(chain[:-1])
    if case.draft_vocab is not None:
        logits[:, [token for token in range(case.target.vocab) if token not in case.draft_vocab]] = -torch.inf
    return logits


def _arguments(case: Case, chain: Chain, cells: Tensor) -> tuple[Any, ...]:
    """Return the verifier's arguments for one draft, a row for each of `cells` [C, 2 N + 1], which share its logits."""
    count = cells.shape[0]
    draft_length = len(chain) + len(case.padding)
    draft_vocab = None if case.draft_vocab is None else torch.tensor(case.draft_vocab)
    draft = Draft.allocate(
        count, draft_length, distribution=case.distribution, vocab_size=case.target.vocab, draft_vocab=draft_vocab
    )
    draft.token_ids[:] = torch.tensor(chain + case.padding, dtype=torch.int32)
    draft.lengths.fill_(len(chain))
    if case.draft_model is not None:
        columns = slice(None) if draft_vocab is None else draft_vocab
        if draft.draft_logits is not None:
            draft.draft_logits[:, : len(chain)] = _draft_logits(case, chain)[:, columns]
        if draft.draft_probs is not None:
            draft.draft_probs[:, : len(chain)] = _stated_distribution(case, chain)[:, columns]
        if draft.drawn is not None and case.drawn:
            draft.drawn[:, : len(chain)] = torch.tensor(case.drawn)
    target = TargetLogits(_logits(case, chain), torch.zeros(count, dtype=torch.int64))
    uniforms = Uniforms(accept=cells[:, :draft_length], draw=cells[:, draft_length:])
    return draft, target, case.knobs.rows(count), uniforms


def _logits(case: Case, chain: Chain) -> Tensor:
    """Return [N + 1, V], the target's logits, followed by one-token distributions that must never be used."""
    forbidden = torch.zeros(len(case.padding), case.target.vocab, dtype=torch.float64)
    forbidden[:, -1] = 50.0
    return torch.cat([case.target.read_logits(chain), forbidden])


def _cells(case: Case, chain: Chain) -> tuple[Tensor, Tensor]:
    """Return the midpoints [C, 2 N + 1] of all cells of the unit cube, and their volumes [C]."""
    edges = torch.tensor([0.0, *_thresholds(case, chain), 1.0], dtype=torch.float64)
    middles = (edges[1:] + edges[:-1]) / 2
    sizes = edges.diff()
    axes = 2 * (len(chain) + len(case.padding)) + 1
    index = torch.cartesian_prod(*[torch.arange(len(sizes))] * axes).reshape(-1, axes)
    return middles[index], sizes[index].prod(1)


def _thresholds(case: Case, chain: Chain) -> list[float]:
    """Return all values in (0, 1), ascending, that a verifier of `chain` may compare a number with."""
    logits = _logits(case, chain)
    targets = [knobs.distribution(logits) for knobs in (case.knobs, *case.knobs.with_a_filter_off())]
    padding = tuple(max(token, 0) for token in case.padding)
    true_distribution = torch.cat([_draft_distribution(case, chain), _one_hot(padding, case.target.vocab)])
    drafts = [true_distribution, *(mistake(true_distribution) for mistake in case.judged_by)]
    found = [p.cumsum(-1) for p in targets]
    for p, q in itertools.product(targets, drafts):
        residual = (p[:-1] - q).clamp(min=0)
        residual = residual / residual.sum(-1, keepdim=True).clamp(min=1e-300)
        kept = (p[place, token] / q[place, token] for place, token in enumerate(chain + padding))
        found += [residual.cumsum(-1), *kept]
    values = torch.cat([value.flatten() for value in found]).tolist()
    return sorted({round(value, 12) for value in values if 1e-12 < value < 1 - 1e-12})  # equal up to rounding


def _collect(verdict: Verification, weights: Tensor, arrived: list[Tensor], vocab: int) -> None:
    """Add each row's weight to the entry of its emitted tokens; `arrived[m]` covers sequences of m + 1 tokens."""
    for length, mass in enumerate(arrived, start=1):
        tokens = verdict.token_ids[:, :length].long()
        if tokens.shape[1] < length:
            break
        valid = (verdict.num_emitted == length) & ((tokens >= 0) & (tokens < vocab)).all(1)
        valid &= (verdict.token_ids[:, length:] == NO_TOKEN).all(1)
        digits = vocab ** torch.arange(length - 1, -1, -1)
        mass.index_add_(0, (tokens[valid] * digits).sum(1), weights[valid])


def _continue(case: Case, distribution: Tensor, arrived: Sequence[Tensor]) -> Tensor:
    """Extend the mass of the empty sequence, `distribution` [1], and later arrivals to the horizon by the target."""
    for logits, more in zip(case.target.levels, arrived, strict=True):
        distribution = (distribution[:, None] * case.knobs.distribution(logits)).flatten() + more
    return distribution


def _nothing(case: Case) -> list[Tensor]:
    """Return zero mass for all sequences of 1, 2, ... tokens."""
    return [torch.zeros(case.target.vocab**length, dtype=torch.float64) for length in range(1, case.horizon + 1)]


def _one_hot(tokens: Chain, vocab: int) -> Tensor:
    """Return [len(tokens), V] float64."""
    return torch.eye(vocab, dtype=torch.float64)[list(tokens)]


def uniform(distribution: Tensor) -> Tensor:
    """Return the uniform distribution over the same vocabulary."""
    return torch.full_like(distribution, 1.0 / distribution.shape[-1])


def tempered(distribution: Tensor) -> Tensor:
    """Return the distribution at twice its temperature."""
    flattened = distribution.sqrt()
    return flattened / flattened.sum(-1, keepdim=True)


def halved(distribution: Tensor) -> Tensor:
    """Return half of every probability, which is not a distribution."""
    return distribution / 2


MISTAKEN_DISTRIBUTIONS: tuple[Callable[[Tensor], Tensor], ...] = (uniform, tempered, halved)
"""Distributions that wrong verifiers use instead of the draft's, for `Case.judged_by`."""
