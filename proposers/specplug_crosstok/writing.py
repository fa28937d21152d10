"""Draft tokens of the target for the ids that a draft model has drafted."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby

import numpy as np
import numpy.typing as npt

from specplug.draft_model.pairing import Translation
from specplug.text.translate.drafts import target_draft
from specplug.text.translate.translator import Context
from specplug_crosstok.acceptance import Floats

SOURCES = ("common ids", "text", "open word")
"""Token-level intersection (TLI), string-level exact match (SLEM), and SLEM's tokens of a word that may go on."""

COMMON, TEXT, OPEN_WORD = range(3)


@dataclass(slots=True)
class Tokens:
    """Draft tokens of one request, lists of one entry a token.

    Attributes:
        ids: ids of the target.
        sources: indexes of `SOURCES`.
        probabilities: see `specplug_crosstok.drawing.Drawn`.
        steps: the step of the draft model that drew the token; -1 for text.
    """

    ids: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def add(
        self, ids: Sequence[int], sources: Sequence[int], probabilities: Sequence[float], steps: Sequence[int]
    ) -> None:
        """Append tokens."""
        self.ids += ids
        self.sources += sources
        self.probabilities += probabilities
        self.steps += steps


def target_tokens(
    translation: Translation,
    to_target: npt.NDArray[np.int32],
    drafted: Sequence[int],
    is_common: Sequence[bool],
    probabilities: Floats,
) -> Tokens:
    """Return the draft tokens for drafted ids [n].

    Common ids become the tokens that they correspond to.  The text of all others between them is encoded, after the
    tokens before it.  The draft ends with the first special token, or with a text that ends in the middle of a
    character.
    """
    tokens, context = Tokens(), translation
    controls = translation.translator.target.controls if isinstance(translation, Context) else ()
    for common, group in groupby(range(len(drafted)), is_common.__getitem__):
        steps = list(group)
        ids = [drafted[step] for step in steps]
        if common:
            found = [int(to_target[token]) for token in ids]
            found = next((found[: at + 1] for at, token in enumerate(found) if token in controls), found)
            steps = steps[: len(found)]
            tokens.add(found, [COMMON] * len(found), probabilities[steps].tolist(), steps)
            is_whole = len(found) == len(ids)
        else:
            assert isinstance(context, Context)
            is_whole = _add_text(tokens, context, ids, probabilities[steps])
        if not is_whole or steps[-1] == len(drafted) - 1 or tokens.ids[-1] in controls:
            return tokens
        context = _after(translation, tokens.ids)
    return tokens


def _add_text(tokens: Tokens, context: Context, drafted: Sequence[int], probabilities: Floats) -> bool:
    """Append the tokens of a drafted text; return whether they are all of it.

    A token's probability is the product of those of the ids that begin in it; what a character's held back bytes are
    completed with counts for the first one.
    """
    found, pieces = target_draft(context, drafted), context.translator.draft.pieces
    ends = list(accumulate(max(1, len(context.translator.target.pieces[token])) for token in found.ids))
    sizes = (len(pieces[token]) if token < len(pieces) else 0 for token in drafted)  # the model's ids may have padding
    begins = list(accumulate((max(1, size) for size in sizes), initial=-len(context.held_back)))
    of_tokens = np.ones(len(ends) + 1)
    np.multiply.at(of_tokens, np.searchsorted(ends, begins[:-1], side="right"), probabilities)
    sources = [TEXT if at < found.num_stable else OPEN_WORD for at in range(len(found.ids))]
    tokens.add(found.ids, sources, of_tokens[:-1].tolist(), [-1] * len(found.ids))
    return bool(ends) and ends[-1] == begins[-1]


def _after(translation: Translation, ids: Sequence[int]) -> Translation:
    """Return the context as it would be after further tokens, for encoding what follows them."""
    if not isinstance(translation, Context):
        return translation
    later = copy.copy(translation)
    later.tail = copy.copy(translation.tail)
    later.tail.extend(ids)
    later.takes_space = later.adds_space = False
    return later
