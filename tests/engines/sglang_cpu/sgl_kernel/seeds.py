"""Numbers by seed and position, for which SGLang hashes with MurmurHash3 of 32 bits."""

from __future__ import annotations

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("sgl_kernel", "FRAGMENT")
_WORD = 0xFFFFFFFF


def murmur_hash32_cpu(seed: Tensor, positions: Tensor, col_indices: Tensor) -> Tensor:
    """Hash the 16 bytes of a seed [n] uint64, a position [n] and a column [m]; returns [n, m] uint32."""
    seeds, columns = seed.view(torch.int64)[:, None], col_indices.long()[None]
    at = positions.view(torch.int64)[:, None] if positions.dtype == torch.uint64 else positions.long()[:, None]
    hashed = torch.zeros(len(seed), len(col_indices), dtype=torch.int64)
    for block in (seeds & _WORD, (seeds >> 32) & _WORD, at & _WORD, columns & _WORD):
        mixed = _times(_turned(_times(block, 0xCC9E2D51), 15), 0x1B873593)
        hashed = (_times(_turned(hashed ^ mixed, 13), 5) + 0xE6546B64) & _WORD
    hashed = hashed ^ 16
    hashed = _times(hashed ^ (hashed >> 16), 0x85EBCA6B)
    hashed = _times(hashed ^ (hashed >> 13), 0xC2B2AE35)
    return (hashed ^ (hashed >> 16)).to(torch.uint32)


def _times(word: Tensor, factor: int) -> Tensor:
    """Multiply 32-bit words modulo 2^32, by halves, as 64 bits with a sign hold no whole product."""
    low, high = word & 0xFFFF, word >> 16
    return (low * factor + ((high * factor & 0xFFFF) << 16)) & _WORD


def _turned(word: Tensor, bits: int) -> Tensor:
    return ((word << bits) | (word >> (32 - bits))) & _WORD


_LIBRARY.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
_LIBRARY.impl("murmur_hash32_cpu", murmur_hash32_cpu, "CPU")
