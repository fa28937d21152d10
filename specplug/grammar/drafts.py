"""Completion of a batch's drafts by their grammars, and the verdict on the tokens that grammars added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import torch
from torch import Tensor

from specplug.faults import FaultGuard
from specplug.grammar.states import GrammarState, follow
from specplug.types.caps import Distribution
from specplug.types.draft import chain_parents
from specplug.types.step import Draft, Outcome, Verdict

SOURCE = "grammar"
"""The source name of grammars' tokens in metrics and traces."""


@dataclass(frozen=True, slots=True, eq=False)
class Completed:
    """Drafts after grammars have cut and extended them.

    `cut` counts the tokens cut from each row; `forced` holds the tokens that grammars added, None if they added none.
    """

    draft: Draft
    cut: list[int]
    forced: Draft | None

    def annotated(self, outcome: Outcome) -> Outcome:
        """Add the cut and forced tokens to the engine's report on these drafts, which has the same row order."""
        device = outcome.emitted.device
        cut = torch.tensor(self.cut, dtype=torch.int32).to(device, non_blocking=True)
        return replace(outcome, cut_by_grammar=cut, forced=self.forced)


def complete(
    draft: Draft, states: Sequence[GrammarState | None], room: Sequence[int], budget: int | None = None
) -> Completed:
    """Cut each row's draft at the first illegal token, and add the tokens that its grammar forces.

    In a tree, illegal nodes are removed with all their descendants.  Nothing is added after a tree with branches.
    Reads the draft's tokens on the host, which synchronises with a GPU.

    Args:
        draft: B rows; only the memory of its full distributions is changed.  Rows with a grammar become one-hot
            drafts, cut or not, because the cut depends on the drawn tokens.
        states: the grammar state of each row, None if no grammar constrains it.
        room: the maximum number of draft tokens of each row, at most the draft's length N.
        budget: the maximum number of draft tokens of all rows; None is no limit.  Existing draft tokens count first.
    """
    is_one_hot = draft.distribution is Distribution.ONE_HOT
    looked_at = None if is_one_hot else torch.tensor([state is not None for state in states]).to(draft.device)
    legal, cut = _legal_part(draft, states, looked_at)
    spare = None if budget is None else max(0, budget - int(legal.lengths.sum()))
    lengths = legal.lengths.tolist()
    ids = legal.token_ids.tolist()
    chained = _are_chains(legal)
    added: list[list[int]] = [[] for _ in states]
    levels: list[list[float]] = [[] for _ in states]
    for row, state in enumerate(states):
        if state is None or not chained[row]:
            continue
        max_tokens = room[row] if spare is None else min(room[row], lengths[row] + spare)
        if max_tokens <= lengths[row]:
            continue
        added[row], levels[row] = follow(state, ids[row][: lengths[row]], max_tokens)
        spare = None if spare is None else spare - len(added[row])
    forced = None
    if any(added):
        forced = Draft.of_rows(added, levels, draft.draft_length, device=draft.device)
    whole = legal if forced is None else _appended(legal, forced)
    return Completed(whole.as_one_hot(looked_at), cut, forced)


class Completer:
    """Completes each step's drafts before verification, and annotates the engine's report on them afterwards.

    After a fault of a grammar, which `guard` contains, the step's drafts stay as they were.
    """

    def __init__(self, guard: FaultGuard) -> None:
        self._guard = guard
        self._done: Completed | None = None

    def complete(
        self, draft: Draft, states: Sequence[GrammarState | None], room: Tensor, budget: int | None = None
    ) -> Draft:
        """Return the draft completed by `complete`; `room` [B] is the maximum number of draft tokens of each row."""

        def step() -> None:
            self._done = complete(draft, states, room.tolist(), budget)

        self._done = None
        if draft.draft_length and any(state is not None for state in states) and self._guard.admits_step():
            self._guard.step(step)
        return draft if self._done is None else self._done.draft

    def annotated(self, outcome: Outcome) -> Outcome:
        """Annotate the engine's report on the newest step; a second call returns it unchanged."""
        done = self.take()
        return outcome if done is None else done.annotated(outcome)

    def take(self) -> Completed | None:
        """Return the newest completed drafts, once; None if nothing was completed."""
        done = self._done
        self._done = None
        return done


def _legal_part(
    draft: Draft, states: Sequence[GrammarState | None], looked_at: Tensor | None
) -> tuple[Draft, list[int]]:
    """Return the draft without the tokens that grammars forbid, and the number of cut tokens per row."""
    lengths = draft.lengths.tolist()
    ids = draft.token_ids.tolist()
    parents = (chain_parents(draft) if draft.parents is None else draft.parents).tolist()
    keep = [[place < length for place in range(draft.draft_length)] for length in lengths]
    for row, state in enumerate(states):
        if state is not None and lengths[row]:
            keep[row] = _legal_nodes(state, ids[row][: lengths[row]], parents[row], draft.draft_length)
    cut = [length - sum(kept) for length, kept in zip(lengths, keep, strict=True)]
    if not any(cut):
        return draft, cut
    return draft.keep(torch.tensor(keep, dtype=torch.bool).to(draft.device), looked_at), cut


def _legal_nodes(state: GrammarState, ids: Sequence[int], parents: Sequence[int], draft_length: int) -> list[bool]:
    """Return which nodes a grammar allows, each after its ancestors; nodes come after their parents.

    Neighbouring nodes mostly share their ancestors, so the state moves along the tree and rolls back only to where
    paths diverge.
    """
    legal = [False] * draft_length
    path: list[int] = []  # nodes that the state has advanced by
    try:
        for node, token in enumerate(ids):
            parent = parents[node]
            if parent >= 0 and not legal[parent]:
                continue
            above = _path_to(parent, parents)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, above, strict=False)))
            if len(path) > shared:
                state.rollback(len(path) - shared)
                del path[shared:]
            for ancestor in above[shared:]:
                state.advance(ids[ancestor])
                path.append(ancestor)
            if state.advance(token):
                path.append(node)
                legal[node] = True
    finally:
        if path:
            state.rollback(len(path))
    return legal


def _path_to(node: int, parents: Sequence[int]) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def _are_chains(draft: Draft) -> list[bool]:
    """Return, per row, whether each node is the child of the one before it."""
    if draft.parents is None:
        return [True] * draft.batch_size
    follows: list[bool] = ((draft.parents == chain_parents(draft)) | ~draft.mask()).all(1).tolist()
    return follows


def _appended(draft: Draft, forced: Draft) -> Draft:
    """Return the draft with the grammars' tokens appended."""
    place = torch.arange(draft.draft_length, device=draft.device) - draft.lengths[:, None]
    inside = (place >= 0) & (place < forced.lengths[:, None])
    index = place.clamp(min=0).long()

    def joined(mine: Tensor, theirs: Tensor) -> Tensor:
        return torch.where(inside, theirs.gather(1, index), mine)

    return replace(
        draft,
        token_ids=joined(draft.token_ids, forced.token_ids),
        confidence=joined(draft.confidence, forced.confidence),
        lengths=draft.lengths + forced.lengths,
        parents=None if draft.parents is None else torch.where(inside, chain_parents(draft), draft.parents),
    )


def split_grammar_verdict(lengths: Tensor, outcome: Outcome, verdict: Verdict) -> tuple[Draft, Verdict, Tensor]:
    """Separate the grammars' tokens and their verdict from those of the proposers.

    Args:
        lengths: [B] int32, tokens of each text after verification.
        outcome: its outcome, with `forced`.
        verdict: the verdict on the proposers' drafts, which precede the grammars' tokens.

    Returns:
        The grammars' tokens, their verdict, and [B] bool, true where the first of them was decided: if the target
        rejected one of the proposer's tokens, the tokens after it are undecided.
    """
    forced = outcome.forced
    assert forced is not None
    all_verified, accepted = outcome.until_stop()
    before = verdict.proposed - verdict.cut_by_grammar
    none = torch.zeros_like(verdict.proposed)
    added = torch.where(outcome.discarded(), none, forced.lengths)
    verified = (all_verified - before).clamp(min=0).minimum(added)
    reached = (accepted >= before) & (verified > 0)
    places = torch.arange(forced.token_ids.shape[1], device=added.device)
    source = torch.where(places < added[:, None], 0, -1).int()
    base_len = lengths - outcome.emitted + before
    draft = replace(forced, lengths=added, source=source, base_len=base_len, sources=(SOURCE,))
    own = Verdict(
        proposed=added,
        verified=verified,
        accepted=(accepted - before).clamp(min=0).minimum(verified),
        cut_by_grammar=none,
        emitted=outcome.emitted - verdict.accepted,
        after_stop=verdict.after_stop,
    )
    return draft, own, reached
