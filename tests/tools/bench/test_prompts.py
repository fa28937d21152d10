"""Prompts of a benchmark: read, told apart by kind, and assigned to groups."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.errors import SettingsError, TraceError
from specplug.tools.bench.prompts import MOST_KINDS, OTHER, Prompt, assign_groups, limited, read_prompts


def test_prompts_are_read_from_traces_and_chat_logs_without_repeats(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"prompt": "one", "output": "x"}\n\n{"prompt": "one", "output": "y"}\n{"prompt": "three", "workload": "code"}'
    )
    chat = [{"role": "user", "content": "two"}, {"role": "assistant", "content": "answer"}]
    (tmp_path / "b.jsonl").write_text(
        json.dumps({"messages": chat, "kind": "talk", "workload": "x"}) + "\n", "utf-8-sig"
    )
    found = read_prompts([tmp_path])
    assert found == [Prompt("one"), Prompt("three"), Prompt(messages=(chat[0],))]
    assert [prompt.kind for prompt in found] == ["a", "code", "talk"]
    assert [prompt.path for prompt in found] == ["/v1/completions"] * 2 + ["/v1/chat/completions"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("5", "int"),
        ('{"text": "a"}', "'text'"),
        ('{"prompt": ""}', "'prompt'"),
        ('{"messages": ["a"]}', "'messages'"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "'messages'"),
    ],
)
def test_a_line_without_a_prompt_is_named(tmp_path, line: str, found: str):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line)
    with pytest.raises(TraceError, match=r"bad\.jsonl, line 2") as error:
        read_prompts([path])
    assert found in str(error.value)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=10), st.integers(1, 5), st.integers(0, 5))
def test_every_prompt_is_in_one_group_of_its_kind(sizes, concurrency, seed):
    prompts = [Prompt(f"{kind} {number}", kind=str(kind)) for kind, size in enumerate(sizes) for number in range(size)]
    try:
        groups = assign_groups(prompts, concurrency, seed)
    except SettingsError:
        assert len(prompts) < 2 * concurrency
        return
    sent = Counter(prompt for group in groups for prompt in group.prompts)
    assert set(sent.values()) == {1}
    assert len(prompts) - len(sent) < concurrency, "only too few others for a group are left out"
    assert all(concurrency <= len(group.prompts) < 2 * concurrency for group in groups)
    large = {str(kind) for kind, size in enumerate(sizes) if size >= 2 * concurrency}
    kinds = Counter(group.kind for group in groups)
    assert set(kinds) <= large | {OTHER}
    assert len(kinds) <= MOST_KINDS + 1
    for end in range(1, len(groups)):  # in proportion at any time
        so_far = Counter(group.kind for group in groups[:end])
        assert all(abs(so_far[kind] - count * end / len(groups)) <= len(kinds) for kind, count in kinds.items())


def test_other_takes_no_kinds_seat():
    prompts = [Prompt(f"{kind} {number}", kind=str(kind)) for kind in range(12) for number in range(20 - kind)]
    frequent = {str(kind) for kind in range(MOST_KINDS)}
    assert {group.kind for group in assign_groups(limited(prompts, None, 0), 2, 0)} == {*frequent, OTHER}


def test_the_order_of_prompts_and_sides_is_drawn():
    prompts = [Prompt(str(number), kind=str(number % 2)) for number in range(48)]
    orders = {tuple(group.tested_first for group in assign_groups(prompts, 1, seed)) for seed in range(5)}
    first = {assign_groups(prompts, 1, seed)[0].prompts for seed in range(5)}
    assert len(orders) == 5
    assert 96 < sum(sum(order) for order in orders) < 144, "a fair coin"
    assert len(first) > 1
    assert assign_groups(prompts, 1, 3) == assign_groups(prompts, 1, 3)
    assert Counter(prompt.kind for prompt in limited(prompts, 12, 1)) == {"0": 6, "1": 6}
