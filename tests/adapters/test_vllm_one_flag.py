"""The speculative configuration that specplug's section alone implies.  Needs no vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from specplug.errors import SettingsError
from specplug_vllm.startup.engine_config import implied

OURS = {"method": "custom_class", "model": "specplug_vllm.Proposer"}


@pytest.mark.parametrize(
    ("given", "section", "found"),
    [
        (None, {"proposer": "ngram"}, {**OURS, "num_speculative_tokens": 15}),
        (None, {}, {**OURS, "num_speculative_tokens": 15}),
        (None, {"proposer": "ngram", "num_speculative_tokens": 7}, {**OURS, "num_speculative_tokens": 7}),
        ({"num_speculative_tokens": 5}, {"proposer": "ngram"}, {**OURS, "num_speculative_tokens": 5}),
        ({"method": "custom_class"}, {}, {**OURS, "num_speculative_tokens": 15}),
        (
            {"model": "specplug_vllm.Proposer", "max_model_len": 9},
            {},
            {**OURS, "max_model_len": 9, "num_speculative_tokens": 15},
        ),
        ({**OURS, "num_speculative_tokens": 3}, {}, {**OURS, "num_speculative_tokens": 3}),
    ],
)
def test_a_section_alone_turns_speculation_on(given: Any, section: dict[str, Any], found: dict[str, Any]) -> None:
    assert implied(given, {"specplug": section, "other": 1}) == found


@pytest.mark.parametrize(
    ("given", "additional_config"),
    [
        (None, None),
        (None, {}),
        (None, {"other": {"proposer": "ngram"}}),
        (None, {"specplug": {"proposer": "engine"}}),
        ({"method": "ngram", "num_speculative_tokens": 4}, {"specplug": {}}),
        ({"method": "mtp"}, {"specplug": {"proposer": "ngram"}}),  # refused later, by name
        ({"model": "a/draft-model", "num_speculative_tokens": 4}, {"specplug": {}}),
    ],
)
def test_other_launches_stay_as_they_are(given: Any, additional_config: Any) -> None:
    assert implied(given, additional_config) is given


@pytest.mark.parametrize("section", [{"proposr": "ngram"}, "ngram"])
def test_an_invalid_section_is_refused_by_its_flag(section: Any) -> None:
    with pytest.raises(SettingsError, match="--additional-config"):
        implied(None, {"specplug": section})
