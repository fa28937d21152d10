"""Texts of the benchmark: tokens of the sources of Python's library, to decode, and as responses that have finished."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

Tokens = npt.NDArray[np.int32]

PIECE = re.compile(r"\w+|\s+|[^\w\s]")

FINISHED_TOKENS, RESPONSE_TOKENS, PROMPT_TOKENS = 1_000_000, 500, 3
"""Tokens of all finished responses at most, of each, and of the prompt before it."""


def library_tokens(most: int) -> Tokens:
    """Return at most this many tokens of the sources of Python's library; words, spaces and signs are tokens."""
    found: list[int] = []
    ids: dict[str, int] = {}
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if len(found) >= most:
            break
        if "site-packages" not in path.parts and "dist-packages" not in path.parts:
            pieces = PIECE.findall(path.read_text(encoding="utf-8", errors="replace"))
            found += [ids.setdefault(piece, len(ids)) for piece in pieces]
    return np.array(found[:most], np.int32)


def set_aside(tokens: Tokens) -> tuple[Tokens, list[torch.Tensor]]:
    """Return the tokens to decode, and responses that have finished: the last sixth, at most `FINISHED_TOKENS`.

    Each response, [N] int32, has `RESPONSE_TOKENS` tokens, after the last `PROMPT_TOKENS` of its prompt.
    """
    end = tokens.size - min(FINISHED_TOKENS, tokens.size // 6)
    starts = range(end, tokens.size, RESPONSE_TOKENS)
    finished = [torch.from_numpy(tokens[start - PROMPT_TOKENS : start + RESPONSE_TOKENS]) for start in starts]
    return tokens[:end], finished
