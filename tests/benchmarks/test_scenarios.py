"""The scenarios of the benchmark on real models: what their requests bring, made of texts that some function writes."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from benchmarks.real_models.__main__ import arguments, main
from benchmarks.real_models.arms import requests
from benchmarks.real_models.prompts import KINDS, Prompt, read
from benchmarks.real_models.scenarios import CONVERSATIONS, EARLY, SCENARIOS, SHARES, changed


def echo(prompts: Sequence[Prompt]) -> list[str]:
    """Answer every prompt with a text of its own."""
    return [f"answer  to\n\n{prompt.messages[-1]['content']}" for prompt in prompts]


def test_a_share_of_the_words_changes_and_the_spaces_stay():
    text = "\n".join(f"  one  two{number} three" for number in range(2000))
    for share in (0.0, 0.05, 0.2, 1.0):
        other = changed(text, share, ["other"], random.Random(0))
        pairs = list(zip(text.split(), other.split(), strict=True))
        assert sum(a != b for a, b in pairs) / len(pairs) == pytest.approx(share, abs=0.02)
        assert {b for a, b in pairs if a != b} <= {"other"}
        assert [len(line) - len(line.lstrip(" ")) for line in other.split("\n")] == [2] * 2000


def test_every_kind_of_prediction_comes_with_every_kind_of_prompt_once_and_an_unrelated_one_is_anothers():
    prompts = read(KINDS, 3)
    made = SCENARIOS["prediction"].prompts(echo, 3, None)
    assert Counter(each.kind for each in made) == dict.fromkeys(SHARES, len(prompts) // len(SHARES))
    assert len({(prompt.kind, each.kind) for prompt, each in zip(prompts, made, strict=True)}) == 18
    for prompt, each, answer in zip(prompts, made, echo(prompts), strict=True):
        assert (each.messages, each.max_tokens) == (prompt.messages, prompt.max_tokens)
        same = each.fields["specplug_prediction"] == answer
        assert same is False or SHARES[each.kind] is not None
        if SHARES[each.kind] is None:
            assert each.fields["specplug_prediction"] in echo(prompts)
    [first, *_] = requests(made, [0], 0.0, seeded=False)
    assert first["extra_args"] == made[0].fields
    assert "extra_args" not in requests(prompts, [0], 0.0, seeded=False)[0]


def test_turns_hold_the_answers_of_those_before():
    chats = [json.loads(line) for line in CONVERSATIONS.read_text().splitlines()]
    assert len(chats) >= 6
    assert {len(chat["edits"]) for chat in chats} == {8}
    made = SCENARIOS["turns"].prompts(echo, 2, 32)
    assert Counter(each.kind for each in made) == {f"turns 1 to {EARLY}": 2 * EARLY, "turns 5 to 8": 8}
    assert {each.max_tokens for each in made} == {32}
    for before, each in itertools.pairwise(made[:8]):
        assert each.messages[:-2] == before.messages
        assert each.messages[-2] == {"role": "assistant", "content": echo([before])[0]}
    assert chats[1]["code"] in made[8].messages[0]["content"]
    assert len(made[8].messages) == 1


def test_a_scenario_is_of_one_engine(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["real_models", "--engine", "sglang", "--scenario", "turns"])
    with pytest.raises(SystemExit):
        main()
    assert "--scenario needs --engine vllm-v1" in capsys.readouterr().err
    assert set(SCENARIOS) <= set(arguments().format_help().replace('"', " ").split())
