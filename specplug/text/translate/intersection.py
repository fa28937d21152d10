"""Tokens that two vocabularies share: special ones by role, ordinary ones by bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specplug.text.translate.vocabulary import Vocabulary

_ROLES = {
    "begin": ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>"),
    "end": ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    "turn": ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "<|start|>"),
    "end_of_turn": ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|eot|>", "<|return|>"),
    "infill_prefix": ("<|fim_prefix|>", "<fim_prefix>", "[PREFIX]", "<\uff5cfim\u2581begin\uff5c>"),
    "infill_middle": ("<|fim_middle|>", "<fim_middle>", "[MIDDLE]", "<\uff5cfim\u2581end\uff5c>"),
    "infill_suffix": ("<|fim_suffix|>", "<fim_suffix>", "[SUFFIX]", "<\uff5cfim\u2581hole\uff5c>"),
    "padding": ("<pad>", "<|pad|>", "<|finetune_right_pad_id|>", "[PAD]"),
}
"""Roles, and the names that published models give their tokens."""

_ENDS = (*_ROLES["end"], *_ROLES["end_of_turn"])


@dataclass(frozen=True, slots=True)
class Controls:
    """The control tokens that correspond.  Unknown tokens do to nothing.

    Attributes:
        to_draft: the target's id -> the draft's.
        to_target: the draft's id -> the target's.
    """

    to_draft: dict[int, int]
    to_target: dict[int, int]


def match_controls(target: Vocabulary, draft: Vocabulary) -> Controls:
    """Match tokens of the same literal text, then those of the same role.

    The remaining tokens that end a text or a turn all correspond to the one that ends the other model's outputs: models
    differ in which of them they use.
    """
    own, other = _texts(target), _texts(draft)
    pairs = [(own[text], other[text]) for text in own.keys() & other.keys()]
    matched = {token for token, _ in pairs}, {token for _, token in pairs}
    for names in _ROLES.values():
        first = next((own[name] for name in names if name in own and own[name] not in matched[0]), None)
        second = next((other[name] for name in names if name in other and other[name] not in matched[1]), None)
        if first is not None and second is not None:
            pairs.append((first, second))
    to_draft, to_target = dict(pairs), {second: first for first, second in pairs}
    _add_ends(to_draft, own, target.eos_id, draft.eos_id)
    _add_ends(to_target, other, draft.eos_id, target.eos_id)
    return Controls(to_draft, to_target)


def _texts(vocabulary: Vocabulary) -> dict[str, int]:
    return {text: token for token, text in vocabulary.controls.items() if token != vocabulary.unk_id}


def _add_ends(table: dict[int, int], texts: dict[str, int], eos_id: int | None, other: int | None) -> None:
    if other is not None:
        for token in (eos_id, *(texts[name] for name in _ENDS if name in texts)):
            if token is not None:
                table.setdefault(token, other)


@dataclass(frozen=True, slots=True)
class Intersection:
    """Tokens of two vocabularies with the same bytes, or special ones that correspond, one to one.

    Token-level intersection (TLI; Timor et al., ICML 2025, arXiv 2502.05202) drafts from these alone.

    Of several tokens with the same bytes, such as SentencePiece's "a" and its byte 0x61, the one that a text is encoded
    to is used.  The first word of a text differs for tokenizers that put a space before it: there " The" of one stands
    for "The" of the other, which these tables do not say.

    Attributes:
        to_draft: [target_vocab] int32, the draft's id of each of the target's; -1 where there is none.
        to_target: [draft_vocab] int32, the reverse.
        of_target: percentage of the target's tokens that the draft has too; those with the same bytes count once.
        of_draft: percentage of the draft's tokens that the target has too.
    """

    to_draft: npt.NDArray[np.int32]
    to_target: npt.NDArray[np.int32]
    of_target: float
    of_draft: float


def intersect(target: Vocabulary, draft: Vocabulary, target_vocab: int = 0, draft_vocab: int = 0) -> Intersection:
    """Return the intersection of two vocabularies.

    Args:
        target_vocab, draft_vocab: the lengths of the models' logits, if they are longer than the vocabularies.
    """
    to_draft = np.full(max(target_vocab, len(target.pieces)), -1, np.int32)
    to_target = np.full(max(draft_vocab, len(draft.pieces)), -1, np.int32)
    own, other, controls = ids_by_piece(target), ids_by_piece(draft), match_controls(target, draft)
    pairs = [(own[piece], other[piece]) for piece in own.keys() & other.keys()]
    pairs += [(token, to) for token, to in controls.to_draft.items() if controls.to_target.get(to) == token]
    for token, to in pairs:
        to_draft[token], to_target[to] = to, token
    return Intersection(
        to_draft,
        to_target,
        *(100 * len(pairs) / (len(ids) + len(v.controls)) for ids, v in ((own, target), (other, draft))),
    )


def ids_by_piece(vocabulary: Vocabulary) -> dict[bytes, int]:
    """Return bytes -> id; ids for bytes alone are used only if no other token has the same ones."""
    alone = set(vocabulary.byte_ids)
    ordinary = [(piece, token) for token, piece in enumerate(vocabulary.pieces) if piece]
    return dict(sorted(ordinary, key=lambda pair: (pair[1] not in alone, -pair[1])))
