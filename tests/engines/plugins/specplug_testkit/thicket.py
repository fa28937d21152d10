"""Proposers that draft trees."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from torch import Tensor

from specplug.interfaces import PluginContext, Proposer
from specplug.types.paths import ROOT
from specplug.types.request import Request
from specplug.types.step import Draft, EngineBatch
from specplug_testkit.options import BranchesOptions

RIGHT = 0.9  # confidences
WRONG = 0.05


class Tree(NamedTuple):
    """One row's draft, a parent for each token, before it or `ROOT`."""

    tokens: list[int]
    parents: list[int]
    confidence: list[float]


class _Trees(Proposer):
    """Drafts a tree per row, on the host; where the engine takes none, the pipeline makes a chain of it."""

    def __init__(self, context: PluginContext) -> None:
        self.context = context

    def tree(self, text: list[int], limit: int, request: Request | None) -> Tree:
        """Return at most `limit` nodes after a text."""
        raise NotImplementedError

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        for row, limit in enumerate(limits.tolist()):
            if limit > 0:
                text = batch.tokens[batch.rows[row], : batch.lengths[row]].tolist()
                found = self.tree(text, limit, None if batch.requests is None else batch.requests[row])
                draft.set_row(row, found.tokens, found.confidence, parents=found.parents)


class Thicket(_Trees):
    """Drafts the answer's next tokens, each after a wrong sibling, so that the right nodes are not adjacent.

    The answer is the request's first reference, which holds it alone.
    """

    def tree(self, text: list[int], limit: int, request: Request | None) -> Tree:
        place = 0 if request is None else len(text) - request.prompt_length
        answer = request.references[0].token_ids.tolist() if request is not None and request.references else []
        tree = Tree([], [], [])
        parent = ROOT
        for token in answer[place : place + limit + 1]:
            for drafted, confidence in ((token + 1, WRONG), (token, RIGHT)):
                if len(tree.tokens) == limit:
                    return tree
                tree.tokens.append(drafted % self.context.vocab_size)
                tree.parents.append(parent)
                tree.confidence.append(confidence)
            parent = len(tree.tokens) - 1
        return tree


class Branches(_Trees):
    """Drafts after each token the tokens that its options name, level by level, until there is no more room.

    If each token has one such token, the draft is a chain.
    """

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._options: BranchesOptions = context.options or BranchesOptions()

    def tree(self, text: list[int], limit: int, request: Request | None) -> Tree:
        after = self._options.after
        tree = Tree([], [], [])
        open_ends = deque([(text[-1], ROOT)])
        while open_ends and after:
            above, parent = open_ends.popleft()
            for token in after[above % len(after)]:
                if len(tree.tokens) == limit:
                    return tree
                open_ends.append((token, len(tree.tokens)))
                tree.tokens.append(token)
                tree.parents.append(parent)
                tree.confidence.append(1.0 / len(after[above % len(after)]))
        return tree
