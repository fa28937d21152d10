"""Comparison of the same tasks with and without speculation: outputs, steps and time, less repetition loops."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specplug.errors import SpecplugError
from specplug.plugins.embedded import TextEngine, TextRequest
from specplug.tools.demo.tasks import Task

LOOP_PERIOD = 16
"""Longest period that counts as a repetition loop, in which any lookup drafts perfectly and inflates figures."""

LOOP_TIMES = 3
"""Number of consecutive repetitions of a stretch of `LOOP_PERIOD` tokens that make a loop."""


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One task, served once.

    Attributes:
        token_ids, text: the generated output.
        seconds: time spent on each token; a step's time is divided evenly among the tokens that it emitted.
        steps: target steps spent on each token, divided likewise.
    """

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    seconds: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TaskPair:
    """One task, served without and with speculation."""

    task: Task
    plain: TaskRun
    speculative: TaskRun
    drafted: int
    accepted: int

    @property
    def identical(self) -> bool:
        """Return whether both runs emitted the same tokens."""
        return self.plain.token_ids == self.speculative.token_ids


@dataclass(frozen=True, slots=True)
class TaskComparison:
    """The comparison over the tasks of one kind.

    `tokens`, `tokens_per_step` and `speedup` cover correct outputs only (all outputs of open tasks) and exclude the
    tokens inside repetition loops; the shares give the excluded amounts.

    Attributes:
        identical: number of tasks with the same output with and without speculation.
        correct_share: share of correct outputs; None for open tasks.
        tokens_per_step: tau with speculation, bonus included; without it, tau is 1.
        acceptance_rate: accepted / drafted, over all outputs of the kind.
        speedup: wall-clock time without speculation / with it, prefill included.
    """

    kind: str
    tasks: int
    identical: int
    correct_share: float | None
    loop_share: float
    tokens: int
    tokens_per_step: float | None
    acceptance_rate: float | None
    speedup: float | None


def run_pairs(
    tasks: Sequence[Task],
    plain: TextEngine,
    speculative: TextEngine,
    max_tokens: int,
    done: Callable[[Task], None],
    form: Callable[[str], Any] = str,
) -> list[TaskPair]:
    """Serve each task with both engines in turn, so that noise on the machine affects both.

    Serve some other task with both first, by `serve`, since the first one includes one-time set-up.  `form` makes an
    engine's prompt, a text or token ids, of a task's.
    """
    pairs = []
    for number, task in enumerate(tasks):
        prompt = form(task.prompt)
        before = speculative.metrics.snapshot()
        if number % 2:
            fast = serve(speculative, prompt, max_tokens)
            slow = serve(plain, prompt, max_tokens)
        else:
            slow = serve(plain, prompt, max_tokens)
            fast = serve(speculative, prompt, max_tokens)
        counts = (speculative.metrics.snapshot() - before).total
        pairs.append(TaskPair(task, slow, fast, counts.proposed, counts.accepted))
        done(task)
    return pairs


def serve(engine: TextEngine, prompt: Any, max_tokens: int, show: Callable[[str], object] = str) -> TaskRun:
    """Serve one prompt, and pass its text to `show` as it comes."""
    run = TaskRun()
    text = []
    began = time.perf_counter()
    for update in engine.stream([TextRequest(prompt=prompt, max_tokens=max_tokens)]):
        text.append(update.text)
        show(update.text)
        count = len(update.token_ids)
        if not count:  # the time of such a step is counted with the next tokens
            continue
        now = time.perf_counter()
        run.token_ids.extend(update.token_ids)
        run.seconds.extend([(now - began) / count] * count)
        run.steps.extend([1 / count] * count)
        began = now
    return TaskRun(run.token_ids, "".join(text), run.seconds, run.steps)


def summarise(kind: str, pairs: Iterable[TaskPair]) -> TaskComparison:
    """Compare the pairs of one kind, or of all kinds together."""
    pairs = list(pairs)
    verdicts = [pair.task.is_correct(pair.speculative.text) for pair in pairs]
    judged = [verdict for verdict in verdicts if verdict is not None]
    counted = [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict is not False and pair.identical]
    tokens = loops = 0
    plain_seconds = fast_seconds = steps = 0.0
    for pair in counted:
        for place, in_loop in enumerate(loop_mask(pair.speculative.token_ids)):
            loops += in_loop
            if not in_loop:
                tokens += 1
                steps += pair.speculative.steps[place]
                plain_seconds += pair.plain.seconds[place]
                fast_seconds += pair.speculative.seconds[place]
    drafted = sum(pair.drafted for pair in pairs)
    return TaskComparison(
        kind=kind,
        tasks=len(pairs),
        identical=sum(pair.identical for pair in pairs),
        correct_share=sum(judged) / len(judged) if judged else None,
        loop_share=loops / (tokens + loops) if tokens + loops else 0.0,
        tokens=tokens,
        tokens_per_step=tokens / steps if steps else None,
        acceptance_rate=sum(pair.accepted for pair in pairs) / drafted if drafted else None,
        speedup=plain_seconds / fast_seconds if fast_seconds else None,
    )


def loop_mask(token_ids: Sequence[int]) -> list[bool]:
    """Return for each token whether it lies in a loop.

    A loop is a stretch of at least `LOOP_PERIOD` times `LOOP_TIMES` tokens that repeats itself with a period of
    `LOOP_PERIOD` or shorter: 16 tokens three times in a row, or one token 48 times.
    """
    inside = [False] * len(token_ids)
    for step in range(1, LOOP_PERIOD + 1):
        run = 0
        for place in range(step, len(token_ids) + 1):
            if place < len(token_ids) and token_ids[place] == token_ids[place - step]:
                run += 1
                continue
            if run + step >= LOOP_PERIOD * LOOP_TIMES:
                inside[place - run - step : place] = [True] * (run + step)
            run = 0
    return inside


def plot_rows(rows: Sequence[TaskComparison], path: Path, title: str) -> None:
    """Plot tokens per step by task, without and with speculation, as a PNG or in the format of the path's suffix.

    A path that cannot be written, or no matplotlib, raises SpecplugError.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SpecplugError.build(
            "cannot plot", found=str(error), expected="matplotlib", remedy="pip install 'specplug[plot]'"
        ) from error
    shown = [row for row in rows if row.tokens_per_step is not None]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    places = range(len(shown))
    axes.bar([p - 0.2 for p in places], [1.0] * len(shown), 0.4, label="without speculation", color="#9aa5b1")
    heights = [row.tokens_per_step or 0 for row in shown]
    bars = axes.bar([p + 0.2 for p in places], heights, 0.4, label="with specplug", color="#2f6fde")
    axes.bar_label(bars, fmt="%.2f", padding=2)
    axes.set_xticks(list(places), [row.kind for row in shown])
    axes.set_ylabel("tokens per target step")
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise SpecplugError.build("cannot write the plot", who=str(path), found=str(error)) from error
