"""The benchmark on real models: its prompts, groups, ratios and comparisons, and a short run on the shipped model."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.real_models import on_gpu, on_vllm, prompts
from benchmarks.real_models.__main__ import arguments, main, model_folder, run
from benchmarks.real_models.arms import BASELINE, Answer, Arm, Found, chosen
from benchmarks.real_models.equality import differences
from benchmarks.real_models.fresh import rows, spent, steps_of
from benchmarks.real_models.on_transformers import _after_prefill
from benchmarks.real_models.prompts import KINDS, Prompt
from benchmarks.real_models.run import Arms, Task, fresh, measured, own_caches
from benchmarks.real_models.statistics import ALL, best, over_pairs, ranked, ratios
from specplug.errors import EngineError


def answer(ids: list[list[int]], seconds: float, cpu: float = 1.0, timeline: list[list[float]] | None = None) -> Answer:
    return Answer(ids, seconds, cpu, steps=len(ids), drafted=0, accepted=0, timeline=timeline or [])


def task(kinds: str, concurrency: int) -> Task:
    """Return a task of prompts whose kinds are letters."""
    requested = [Prompt(kind, ({"role": "user", "content": kind},), 8) for kind in kinds]
    return Task(requested, [[number] for number in range(len(requested))], concurrency, 0.0)


def test_every_kind_has_sixteen_prompts_or_more_and_chats_are_many():
    everything = prompts.read()
    assert {kind: sum(each.kind == kind for each in everything) >= 16 for kind in KINDS} == dict.fromkeys(KINDS, True)
    assert all(64 <= each.max_tokens <= 200 and each.messages[-1]["role"] == "user" for each in everything)
    contents = [each.messages[-1]["content"] for each in [*everything, *prompts.more_chats()]]
    assert len(contents) == len(set(contents))
    assert len(prompts.more_chats(32)) >= 64
    assert {each.max_tokens for each in prompts.read(max_tokens=32)} == {32}


def test_kinds_take_turns_and_groups_are_of_one_kind():
    short = prompts.read(["code", "chat"], each=2)
    assert [each.kind for each in short] == ["code", "chat", "code", "chat"]
    two = task("abababa", 2)
    assert two.groups() == [[0, 2], [1, 3], [4, 6], [5]]
    assert [two.kind(group) for group in two.groups()] == ["a", "b", "a", "b"]
    many = task("ab" * 6, 9)
    assert many.groups() == [list(range(9)), [9, 10, 11]]
    assert many.kind(many.groups()[0]) == "mixed"


def test_a_ratio_is_of_whole_kinds_and_its_mean_is_geometric():
    groups, kinds = [[0], [1], [2]], ["a", "a", "b"]
    plain = [answer([[1] * 10], 1.0), answer([[1] * 10], 3.0), answer([[1] * 10], 1.0)]
    fast = [answer([[1] * 10], 0.5), answer([[1] * 10], 0.5), answer([[1] * 5], 0.5)]
    found = Found(groups, kinds, {BASELINE: plain, "fast": fast, "slow": plain})
    wall = ratios(found, "fast", BASELINE, "wall")
    assert wall["a"].value == pytest.approx(4.0)
    assert wall["b"] == pytest.approx((1.0, 1.0, 1.0))
    assert wall[ALL].value == pytest.approx(2.0)
    assert wall["a"].low == pytest.approx(2.0)
    assert wall["a"].high == pytest.approx(6.0)
    assert ratios(found, "fast", BASELINE, "cpu")["b"].value == pytest.approx(0.5)
    assert best(found, ["slow", "fast"], BASELINE, "wall") == "fast"


@pytest.mark.parametrize(("groups", "least"), [(2, 0.8), (4, 0.88)])
def test_an_interval_over_all_kinds_has_the_true_ratio_nearly_as_often_as_it_says(groups: int, least: float):
    random = np.random.default_rng(1)
    kinds = [*"abcdef"] * groups
    runs = 200

    def arm() -> list[Answer]:
        return [answer([[1] * 10], float(np.exp(0.1 * random.standard_normal()))) for _ in kinds]

    def is_covered() -> bool:
        alone = [[number] for number in range(len(kinds))]
        over_all = ratios(Found(alone, kinds, {"a": arm(), "b": arm()}), "a", "b", "wall")[ALL]
        return over_all.low <= 1 <= over_all.high

    assert least < sum(is_covered() for _ in range(runs)) / runs < 0.99


def test_more_rounds_of_the_same_groups_are_no_more_groups():
    groups = [[0], [1], [2]]
    kinds = ["a"] * 3
    plain = [answer([[1] * 10], 1.0)] * 3
    fast = [answer([[1] * 10], each) for each in (0.5, 0.7, 0.9)]
    once = Found(groups, kinds, {"fast": fast, BASELINE: plain})
    often = Found(groups * 4, kinds * 4, {"fast": fast * 4, BASELINE: plain * 4})
    found = [ratios(run, "fast", BASELINE, "wall")[ALL] for run in (once, often)]
    assert found[0] == pytest.approx(found[1])


def test_a_fresh_server_is_compared_at_equal_tokens():
    mine = [answer([], 4.0, timeline=[[1.0, 2.0, 1], [4.0, 5.0, 3]]), answer([], 2.0, timeline=[[2.0, 1.0, 2]])]
    plain = [
        answer([], 3.0, timeline=[[1.0, 1.0, 1], [2.0, 2.0, 2], [3.0, 3.0, 3]]),
        answer([], 4.0, timeline=[[1.0, 1.0, 1], [3.0, 3.0, 2], [4.0, 4.0, 3]]),
    ]
    assert spent(mine, plain, 1, "wall") == pytest.approx((1, 1))
    assert spent(mine, plain, 2, "wall") == pytest.approx((3, 4))
    assert spent(mine, plain, 3, "wall") == pytest.approx((3 + 3, 4 + 2))
    assert spent(mine, plain, 3, "cpu") == pytest.approx((3 + 3, 5 + 1))
    assert spent(mine, plain, 4, "wall") is None
    line = [[float(step), float(step), step] for step in range(1, 65)]
    double = [[2 * seconds, cpu, tokens] for seconds, cpu, tokens in line]
    pairs = [([answer([], 64.0, timeline=line)], [answer([], 64.0, timeline=other)]) for other in (line, double)]
    (all_steps,) = rows(pairs, "wall", [64, 65])
    assert (all_steps["steps"], all_steps["servers"]) == ([1, 64], [1.0, 2.0])
    assert all_steps["mean"] == pytest.approx((2**0.5, 1.0, 2.0))


def test_later_steps_of_a_fresh_server_are_compared_alone():
    mine = [answer([], 8.0, timeline=[[4.0, 4.0, 1], [8.0, 8.0, 2], [9.0, 9.0, 3], [10.0, 10.0, 4]])]
    plain = [answer([], 4.0, timeline=[[float(step), float(step), step] for step in range(1, 5)])]
    found = {tuple(row["steps"]): row["servers"] for row in rows([(mine, plain)], "cpu", [2, 4])}
    assert found == {(1, 2): [2 / 8], (1, 4): [4 / 10], (3, 4): [1.0]}


def test_prefills_are_left_out_until_every_answer_has_begun():
    line = [[3.0, 2.0, 1], [4.0, 3.0, 3], [5.0, 3.5, 6]]
    whole = replace(answer([[1, 2, 3], [4, 5, 6]], 5.0, 3.5, line), prefill_steps=2)
    rest = whole.decoding()
    assert (rest.tokens, rest.seconds, rest.cpu, rest.timeline) == (3, 1.0, 0.5, [[1.0, 0.5, 3]])
    assert steps_of([whole]) == steps_of([rest]) == 1
    assert answer([[1]], 1.0).decoding() == answer([[1]], 1.0)
    only = replace(answer([[1]], 1.0, 1.0, [[1.0, 1.0, 1]]), prefill_steps=1).decoding()
    assert spent([only, rest], [rest, rest], 1, "wall") == (1.0, 1.0)


def test_constants_of_several_runs_are_ranked_by_the_baselines_of_their_own_runs():
    def run(seconds: dict[str, float]) -> Found:
        return Found([[0]], ["a"], {name: [answer([[1] * 6], each)] for name, each in seconds.items()})

    slow_hour = run({BASELINE: 4.0, "x": 2.0, "y": 8.0})
    fast_hour = run({BASELINE: 1.0, "z": 0.8})
    found = ranked([slow_hour, fast_hour], BASELINE, "wall")
    assert list(found) == ["x", "z", "y"]
    assert list(found.values()) == pytest.approx([2.0, 1.25, 0.5])


def test_the_prompts_that_choose_a_constant_are_not_those_that_compare_it():
    choosing, rest = task("ababab", 1).split(2)
    assert [prompt.kind for prompt in choosing.prompts] == ["a", "b"]
    assert (choosing.ids, rest.ids) == ([[0], [1]], [[2], [3], [4], [5]])


@pytest.mark.parametrize("line", ["--engine transformers --constants 1", "--engine vllm-v1 --constants 2 --prompts 2"])
def test_constants_without_prompts_to_compare_them_on_are_refused(line, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["real_models", *line.split()])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "--constants needs --engine vllm-v1" in capsys.readouterr().err


def test_the_mean_over_pairs_of_servers_has_an_interval():
    assert over_pairs([1.0, 1.0]) == (1.0, 1.0, 1.0)
    mean, low, high = over_pairs([0.5, 2.0] * 8)
    assert mean == pytest.approx(1.0)
    assert 0.5 < low < 1 < high < 2


def test_arms_that_start_find_no_costs_that_others_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    class Host:
        def stop(self) -> None: ...

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    with own_caches() as caches:
        assert caches == Path(os.environ["XDG_CACHE_HOME"]) / "specplug"
        assert os.environ["NUMBA_CACHE_DIR"] == str(tmp_path / "specplug")
        caches.mkdir()
        Arms({"one": Host()}, print, caches).stop("one")
        assert not caches.exists()
    assert os.environ["XDG_CACHE_HOME"] == str(tmp_path)
    assert "NUMBA_CACHE_DIR" not in os.environ


def test_fresh_pairs_take_turns_and_stop_at_their_steps():
    order = []

    class Host:
        def __init__(self, name: str) -> None:
            self.name = name

        def call(self, function, prompts, params):
            order.append(self.name)
            line = [[1.0, 1.0, 1], [2.0, 2.0, 2], [3.0, 3.0, 3]]
            found = {"token_ids": [[1, 2, 3]], "seconds": 3, "cpu": 3, "steps": 3, "drafted": 0, "accepted": 0}
            return found | {"timeline": line, "prefill_steps": 1}

        def stop(self) -> None:
            order.append("stop")

    hosts = {BASELINE: Host("plain"), "specplug": Host("ours")}
    pairs = fresh(Arms(hosts, print), "specplug", task("aaa", 1), 2, 3)
    assert order == ["stop", "stop", "plain", "ours", "ours", "plain", "stop", "stop", "ours", "plain", "plain", "ours"]
    assert [len(pair.answers["specplug"]) for pair in pairs] == [2, 2]


def test_texts_that_part_are_told_with_the_gap_between_the_logits():
    truth = [answer([[5, 6, 7], [1, 2]], 1.0)]
    other = [answer([[5, 6, 7], [1, 2, 3]], 1.0)]
    wrong = [answer([[5, 9, 7], [1, 2]], 1.0)]
    found = Found([[0, 1]], ["a"], {BASELINE: truth, "longer": other, "wrong": wrong})
    longer, differing = differences(found, [[10, 11], [12]], model_folder("tiny"))
    assert (longer.arm, longer.prompt, longer.position, longer.gap) == ("longer", 1, 2, None)
    assert (differing.arm, differing.prompt, differing.position) == ("wrong", 0, 1)
    assert not longer.is_near_tie
    assert differing.gap is not None
    assert not differing.is_near_tie
    assert [each.gap for each in differences(found, [[10, 11], [12]], None)] == [None, None]


def test_an_arm_that_does_not_run_is_left_out_and_the_baseline_never_is():
    class Host:
        def __init__(self, error: str | None = None) -> None:
            self.error, self.calls = error, 0

        def call(self, function, prompts, params):
            if self.error is not None:
                raise ValueError(self.error)
            self.calls += 1
            return {"token_ids": prompts, "seconds": 1, "cpu": 1, "steps": 1, "drafted": 0, "accepted": 0}

        def stop(self):
            pass

    hosts = {BASELINE: Host(), "broken": Host("no such method\nat all"), "silent": Host(""), "fine": Host()}
    found = measured(Arms(dict(hosts), print), task("ab", 1), task("c", 1), rounds=2)
    assert found.left_out == {"broken": "ValueError: no such method", "silent": "ValueError"}
    assert {name: len(answers) for name, answers in found.answers.items()} == {BASELINE: 4, "fine": 4}
    assert (found.kinds, hosts["fine"].calls) == (["a", "b", "a", "b"], 6)
    with pytest.raises(ValueError, match="broken"):
        measured(Arms({BASELINE: Host("broken")}, print), task("a", 1), task("c", 1), rounds=1)


def test_arms_are_chosen_by_parts_of_their_names():
    arms = [Arm(BASELINE, "baseline", {}), Arm("n-gram, K = 3", "built-in", {}), Arm("specplug", "specplug", {})]
    assert [arm.name for arm in chosen(arms, ["spec"])] == [BASELINE, "specplug"]
    assert chosen(arms, None) == arms


def test_an_arm_that_is_not_installed_is_not_left_out_in_silence():
    options = arguments().parse_args(["--engine", "transformers", "--arms", "specplug", "suffix"])
    with pytest.raises(SystemExit, match=r"--arms suffix: no such arm among no speculation, .*setup-vllm-peers"):
        run(options, model_folder("tiny"), 1)


def test_only_forward_passes_after_the_prompts_own_are_steps():
    assert _after_prefill([4, 3, 7, 5, 93, 12, 11], 93) == [12, 11]
    assert _after_prefill([512, 9, 2, 1], 521) == [2, 1]
    assert _after_prefill([40], 40) == []


def test_a_short_run_on_the_shipped_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    line = (
        "--engine transformers --model tiny --kinds edits --prompts 1 --samples 2 --max-tokens 12 --warm-up 1 --fresh 1"
    )
    options = arguments().parse_args(
        [*line.split(), "--decoding", "--fresh-steps", "4", "8", "--arms", "lookup, 3", "specplug"]
    )
    found = run(options, model_folder("tiny"), 1)
    json.dumps(found)
    names = [BASELINE, "prompt lookup, 3", "specplug", "specplug in generate"]
    assert [name for name, row in found["counts"].items() if row["identical"] == row["texts"] == 2] == names
    assert found["counts"]["specplug"]["tau"] > 1
    assert found["counts"][BASELINE]["tau"] == 1
    assert found["ratios"]["wall"]["best_built_in"] == "prompt lookup, 3"
    assert set(found["ratios"]["cpu"]["specplug_to"]) == {*names} - {"specplug"}
    assert [row["steps"] for row in found["fresh"]["cpu"]] == [[1, 4], [1, 8], [5, 8]]
    assert set(found["ratios"]["cpu"]["to_best_built_in"]) == {"specplug", "specplug in generate"}
    assert "fresh servers" in capsys.readouterr().out


def test_an_arm_on_a_gpu_that_does_not_start_shows_its_log(tmp_path):
    baseline, *built_in, ours = on_gpu.arms("no/such/model", 512, 1, {"dtype": "bfloat16"})
    assert {each.role for each in built_in} == {"built-in"}
    assert (baseline.role, ours.role) == ("baseline", "specplug")
    assert ours.launch == {**baseline.launch, **{key: ours.launch[key] for key in ours.launch.keys() - baseline.launch}}
    process = on_gpu.Process(baseline.launch, tmp_path / "log")
    try:
        with pytest.raises(EngineError, match=r"(?s)vLLM's process has ended.*Error"):
            process.call(on_vllm.answer, prompts=[], params=[])
    finally:
        process.close()
