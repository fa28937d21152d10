"""A model that reasons on vLLM: also how long the reasoning may be, and logprobs of what is sampled."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch

from tests.engines.suites.chats import scripted_model
from tests.engines.suites.reasoning import ORACLE, PROMPT, ReasoningSuite
from tests.engines.suites.served import drafts_of

__all__ = ["scripted_model"]

LENGTH = 4
SAMPLED = {"temperature": 0.7, "top_k": 20, "logprobs": 1, "max_tokens": 24, "ignore_eos": True}


def arguments(marker: str = "</think>") -> dict[str, Any]:
    return {
        "logprobs_mode": "processed_logprobs",
        "structured_outputs_config": {"backend": "xgrammar", "reasoning_parser": "deepseek_r1"},
        "reasoning_config": {"reasoning_start_str": "<think>", "reasoning_end_str": marker},
    }


class TestReasoning(ReasoningSuite):
    slow = ("v2", "v2_async")
    model = "model"
    how: ClassVar[dict[str, Any]] = arguments()

    def budgets_hold(self, truth, ours, budgets: tuple[int, ...]) -> None:
        """Drafts go on beyond the budget, or know of it; the reasoning does not."""
        longer = self.answered(truth, {})
        for budget in budgets:
            params = {"thinking_token_budget": budget}
            expected = self.answered(truth, params)
            assert expected["text"] != longer["text"]
            for drafts in (longer["token_ids"], expected["token_ids"]):
                self.assert_same(expected, self.answered(ours, params, drafts))

    def test_budgets_of_reasoning(self, truth, ours):
        self.budgets_hold(truth, ours, (0, 1, LENGTH - 1, LENGTH, LENGTH + 1, 2 * LENGTH))

    def test_a_budget_spent_in_a_prompt_that_comes_in_chunks(self, truth, ours):
        """The token that the first chunk samples is dropped, and so is the end that was forced on it."""
        begin = self.answered(truth, {})["token_ids"][:1]
        prompt = [*(PROMPT * 200)[:600], *begin]
        for budget in (0, 1):
            params = {"thinking_token_budget": budget, "max_tokens": 8}
            [expected] = truth.generate([prompt], params)
            for drafts in ([], expected["token_ids"]):
                [found] = ours.generate([prompt], {**params, **(drafts_of(drafts) if drafts else {})})
                self.assert_same(expected, found)

    @pytest.mark.slow  # engines of their own
    def test_a_marker_of_two_tokens(self, start, scripted_model):
        """What ends the reasoning by force is longer than what the model ends it by."""
        how = {**arguments("C.\n</think>"), "model": scripted_model}
        truth = start(None, name="plain, two tokens", **how)
        ours = start(ORACLE, name="two tokens", draft_length=LENGTH, **how)
        self.budgets_hold(truth, ours, (0, 1, LENGTH, LENGTH + 1))

    def test_processed_logprobs(self, truth, ours, scripted_model):
        """They are of the distribution that is sampled, whatever was drafted."""
        found = self.answered(ours, SAMPLED, self.answered(truth, {})["token_ids"])
        emitted = found["token_ids"]
        expected = (logits(scripted_model, [*PROMPT, *emitted])[len(PROMPT) - 1 : -1] / SAMPLED["temperature"]).double()
        kept = expected.topk(SAMPLED["top_k"]).values[:, -1:]  # type: ignore[call-overload]
        expected = expected.masked_fill(expected < kept, -torch.inf).log_softmax(-1)
        for place, (token, stated) in enumerate(zip(emitted, found["logprobs"], strict=True)):
            assert stated[str(token)] == pytest.approx(float(expected[place, token]), abs=1e-3)
            assert max(stated.values()) == pytest.approx(float(expected[place].max()), abs=1e-3)


def logits(model: str, text: list[int]) -> torch.Tensor:
    """Return the model's logits [T, V] after each token of a text [T]."""
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        return AutoModelForCausalLM.from_pretrained(model)(input_ids=torch.tensor([text])).logits[0].float()
