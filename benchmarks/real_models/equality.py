"""Greedy texts compared token by token, and how near the model was to the other token where they part.

Arithmetic that differs in its last bits, as between steps of one token and of several, decides between two tokens whose
logits are nearly equal.  Any other difference is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.real_models.arms import BASELINE, Found

NEAR_TIE = 1e-3
"""Gap of logits below which float32 may decide either way."""


@dataclass(frozen=True)
class Difference:
    """Where an arm's answer parts from the baseline's.

    Attributes:
        prompt: index of the prompt.
        position: of the first token that differs, from 0.
        gap: absolute difference of the two tokens' logits there, by a plain forward pass in float32; None if one of the
            texts ended, or if it was not computed.
    """

    arm: str
    prompt: int
    position: int
    gap: float | None

    @property
    def is_near_tie(self) -> bool:
        """Return whether rounding explains it."""
        return self.gap is not None and self.gap < NEAR_TIE


def differences(found: Found, prompts: Sequence[Sequence[int]], model: str | None) -> list[Difference]:
    """Return every answer that is not the baseline's.

    Args:
        prompts: token ids of each prompt.
        model: folder of the model that tells the gaps; None leaves them out, as of sampled texts.
    """
    differing = []
    for name, answers in found.answers.items():
        for group, mine, truth in zip(found.groups, answers, found.answers[BASELINE], strict=True):
            for prompt, ids, expected in zip(group, mine.token_ids, truth.token_ids, strict=True):
                if ids != expected:
                    pairs = zip(ids, expected, strict=False)
                    same = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(expected)))
                    differing.append((name, prompt, same, ids, expected))
    gap = _Gap(model) if model is not None and differing else None
    return [
        Difference(
            name,
            prompt,
            place,
            None
            if gap is None or place >= min(len(ids), len(expected))
            else gap.between([*prompts[prompt], *expected[:place]], ids[place], expected[place]),
        )
        for name, prompt, place, ids, expected in differing
    ]


class _Gap:
    def __init__(self, model: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    def between(self, text: Sequence[int], token: int, other: int) -> float:
        """Return the absolute difference of the logits of two tokens after a text."""
        with self._torch.inference_mode():
            logits = self._model(self._torch.tensor([list(text)])).logits[0, -1]
        return abs(float(logits[token] - logits[other]))
