"""The run: all arms answer the same groups of prompts and take turns, one working at a time."""

from __future__ import annotations

import inspect
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.peers import note
from benchmarks.real_models.arms import BASELINE, Answer, Arm, Found, requests
from benchmarks.real_models.fresh import steps_of
from benchmarks.real_models.prompts import Prompt
from benchmarks.real_models.turns import turn_taking
from specplug.errors import first_line

MIXED = "mixed"
BY_KIND = 8  # most prompts of a group that are of one kind


@dataclass(frozen=True)
class Task:
    """What arms are asked.

    Attributes:
        prompts, ids: the prompts and their token ids.
        answers: token ids of the answers that the model is made to give; None for its own.
        concurrency: most prompts of a group.
        temperature: 0 is greedy.
        seeded: whether each prompt has a seed of its own.
        ignore_eos: whether answers go on to their most tokens.
    """

    prompts: Sequence[Prompt]
    ids: Sequence[list[int]]
    concurrency: int
    temperature: float
    seeded: bool = True
    ignore_eos: bool = False
    answers: Sequence[list[int]] | None = None

    def groups(self) -> list[list[int]]:
        """Return the indices of prompts that are sent together: of one kind, unless that would make small groups."""
        kinds = dict.fromkeys(prompt.kind for prompt in self.prompts)
        if self.concurrency > BY_KIND:
            split = [list(range(len(self.prompts)))]
        else:
            split = [[place for place, prompt in enumerate(self.prompts) if prompt.kind == kind] for kind in kinds]
        size = self.concurrency
        found = [places[first : first + size] for places in split for first in range(0, len(places), size)]
        # Kinds in turn, so that no kind always comes late.
        return sorted(found, key=lambda group: group[0])

    def split(self, first: int) -> tuple[Task, Task]:
        """Return the task of so many prompts, and that of the others."""
        halves = slice(0, first), slice(first, None)
        before, after = (
            replace(
                self,
                prompts=self.prompts[half],
                ids=self.ids[half],
                answers=None if self.answers is None else self.answers[half],
            )
            for half in halves
        )
        return before, after

    def recorded(self, tokenizer: Any) -> Task:
        """Return the task with the answers of its prompts, cut to their most tokens, past all ends."""
        answers = [
            tokenizer.encode(prompt.answer, add_special_tokens=False)[: prompt.max_tokens] for prompt in self.prompts
        ]
        prompts = [replace(prompt, max_tokens=len(ids)) for prompt, ids in zip(self.prompts, answers, strict=True)]
        return replace(self, prompts=prompts, answers=answers, ignore_eos=True)

    def kind(self, group: Sequence[int]) -> str:
        """Return the kind of a group."""
        kinds = {self.prompts[place].kind for place in group}
        return kinds.pop() if len(kinds) == 1 and self.concurrency <= BY_KIND else MIXED

    def given(self, group: Sequence[int]) -> dict[str, Any]:
        """Return the arguments of an engine's `answer`."""
        given = {
            "prompts": [self.ids[place] for place in group],
            "params": requests(self.prompts, group, self.temperature, self.seeded, self.ignore_eos),
        }
        return given if self.answers is None else {**given, "answers": [self.answers[place] for place in group]}


class Arms:
    """Running arms.

    Args:
        hosts: by arm, what runs functions on its engine: `call(function, **arguments)`, and `stop()`.
        answer: the engine's function.
        caches: the folder of what arms keep for later starts.
    """

    def __init__(self, hosts: dict[str, Any], answer: Callable[..., Any], caches: Path | None = None) -> None:
        self.hosts = hosts
        self._answer = answer
        self._takes_turns = "turns" in inspect.signature(answer).parameters
        self._caches = caches
        self.left_out: dict[str, str] = {}

    def ask(self, name: str, task: Task, group: Sequence[int]) -> Answer:
        """Let an arm answer a group."""
        return Answer(**self.hosts[name].call(self._answer, **task.given(group)))

    def ask_all(self, names: Sequence[str], task: Task, group: Sequence[int]) -> dict[str, Answer]:
        """Let arms answer a group, in this order: in turns of a few steps, if the engine's arms can."""
        if not self._takes_turns or len(names) < 2:
            return {name: self.ask(name, task, group) for name in names}
        for name in names:  # one after the other, so that none starts beside the others' steps
            self.hosts[name].call(_started)
        calls = {}
        with turn_taking(len(names)) as turns, ThreadPoolExecutor(len(names)) as threads:
            for place, name in enumerate(names):
                given = {**task.given(group), "turns": turns.pipes[place]}
                calls[name] = threads.submit(self.hosts[name].call, self._answer, **given)
                calls[name].add_done_callback(lambda _, place=place: turns.ended(place))
            turns.run()
            return {name: Answer(**call.result()) for name, call in calls.items()}

    def stop(self, name: str) -> None:
        """End an arm; the next one that starts finds nothing that another has measured."""
        self.hosts[name].stop()
        if self._caches is not None:
            shutil.rmtree(self._caches, ignore_errors=True)

    def start(self, warm_up: Task) -> None:
        """Start the arms anew and let each answer the groups of some other prompts; leave out those that do not run."""
        for name, host in list(self.hosts.items()):
            self.stop(name)
            note(f"starting: {name}")
            try:
                for group in warm_up.groups():
                    self.ask(name, warm_up, group)
            except Exception as error:
                if name == BASELINE:
                    raise
                self.left_out[name] = first_line(error)[:300]
                note(f"{name}: left out, because it did not run: {self.left_out[name]}")
                host.stop()
                del self.hosts[name]


@contextmanager
def running(engine: str, arms: Sequence[Arm], answer: Callable[..., Any]) -> Iterator[Arms]:
    """Yield the arms; they start at their first use, and end with the context."""
    with own_caches() as caches, tempfile.TemporaryDirectory() as logs:
        hosts, close = _hosts(engine, arms, Path(logs))
        try:
            yield Arms(hosts, answer, caches)
        finally:
            close()


def _hosts(engine: str, arms: Sequence[Arm], logs: Path) -> tuple[dict[str, Any], Callable[[], Any]]:
    """Return what runs functions on each arm's engine, and what ends all of them."""
    if engine == "transformers":
        from benchmarks.real_models.on_transformers import Local

        local = {arm.name: Local(arm.launch) for arm in arms}
        return local, lambda: [host.stop() for host in local.values()]
    if engine == "vllm-gpu":
        from benchmarks.real_models.on_gpu import Process

        processes = {arm.name: Process(arm.launch, logs / f"{_file(arm.name)}.log") for arm in arms}
        return processes, lambda: [process.close() for process in processes.values()]
    from tests.engines import engines
    from tests.engines.engines import Pool

    if engine == "sglang":
        from tests.engines.sglang import engines
    pool = Pool(logs, most=len(arms))
    return {arm.name: pool.tenant(engines.Engine, _file(arm.name), arm.launch) for arm in arms}, pool.close


@contextmanager
def own_caches() -> Iterator[Path]:
    """Give the engines that start in this context an empty folder for what specplug measures, and yield it.

    Compiled kernels stay where they are.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = {"NUMBA_CACHE_DIR": home / "specplug", "VLLM_CACHE_ROOT": home / "vllm"}
    with tempfile.TemporaryDirectory() as folder:
        changed = {name: os.environ.get(name, str(path)) for name, path in kept.items()} | {"XDG_CACHE_HOME": folder}
        before = {name: os.environ.get(name) for name in changed}
        os.environ.update(changed)
        try:
            yield Path(folder) / "specplug"
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def measured(arms: Arms, task: Task, warm_up: Task, rounds: int) -> Found:
    """Return what the arms answered; each round starts them anew, and goes through the groups in another order."""
    found = Found([], [], {name: [] for name in arms.hosts})
    for number in range(rounds):
        arms.start(warm_up)
        groups = random.Random(number).sample(task.groups(), len(task.groups())) if number else task.groups()
        for place, group in enumerate(groups):
            found.groups.append(group)
            found.kinds.append(task.kind(group))
            names = list(arms.hosts)
            turn = (place + number) % len(names)
            for name, answer in arms.ask_all(names[turn:] + names[:turn], task, group).items():
                found.answers[name].append(answer)
            _progress(found, place, len(groups), number, rounds)
    found.left_out = arms.left_out
    for name in arms.left_out:
        found.answers.pop(name, None)
    return found


def fresh(arms: Arms, name: str, task: Task, servers: int, steps: int) -> list[Found]:
    """Return what fresh pairs of servers answered, an arm's and the one without, in so many steps of the arm."""
    pairs = []
    for number in range(servers):
        pair = Found([], [], {name: [], BASELINE: []})
        for each in (name, BASELINE):
            arms.stop(each)
        for place, group in enumerate(random.Random(number).sample(task.groups(), len(task.groups()))):
            pair.groups.append(group)
            pair.kinds.append(task.kind(group))
            order = (name, BASELINE) if (number + place) % 2 else (BASELINE, name)
            for each, answer in arms.ask_all(order, task, group).items():
                pair.answers[each].append(answer)
            if steps_of(pair.answers[name]) >= steps:
                break
        cpu = " and ".join(f"{sum(answer.cpu for answer in answers):.1f}" for answers in pair.answers.values())
        note(f"fresh pair {number + 1} of {servers}: {steps_of(pair.answers[name])} steps, {cpu} CPU seconds")
        pairs.append(pair)
    return pairs


def _started(engine: Any) -> None:
    """Do nothing in an arm's process, which starts first."""


def _progress(found: Found, place: int, groups: int, number: int, rounds: int) -> None:
    rates = ", ".join(
        f"{name} {answers[-1].tokens / answers[-1].seconds:.0f}" for name, answers in found.answers.items() if answers
    )
    note(f"round {number + 1} of {rounds}, group {place + 1} of {groups} ({found.kinds[-1]}), tokens/s: {rates}")


def _file(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)
