"""Greedy output with specplug is the plain model's for any draft: chains and trees of any length, overlapped or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from specplug.testing.equality import judge_greedy
from specplug.trace import read_trace
from tests.engines.continuations import continuations
from tests.engines.plain import Answers, assert_greedy, forward, greedy, model, prompts, tokenizer
from tests.engines.sglang import inside, trees, watching
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.launch import SMALL

GIVEN = prompts()[:16]  # twice as many as an engine runs at once
PROMPTS = [list(prompt) for prompt in GIVEN]
DRAFT_LENGTH = 8
SETTINGS = {
    "proposer": "ngram",
    "extra_proposers": ["oracle", "thicket", "bigram", "ngram-reference"],
    "policy": "ladder",
    "options": {"ladder": {"draft_lengths": [DRAFT_LENGTH]}},
    "faults": {"host_deadline_ms": None},
}
"""Requests name their proposers, and tests the draft lengths: see `trees.plan`."""

KINDS = {
    "chains, sync": {"topk": 1, "overlap": False},
    "chains, overlapped": {"topk": 1, "overlap": True},
    "trees, sync": {"topk": 4, "overlap": False},
    "trees, overlapped": {"topk": 4, "overlap": True},
}


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of draft and its scheduling.  Tests of one kind run together, so that engines start once."""
    return str(request.param)


@pytest.fixture(scope="session")
def ours(kind: str, engine: Callable[..., Engine]) -> Engine:
    """An engine whose requests name their proposers."""
    return engine("SPECPLUG", draft_length=DRAFT_LENGTH, **KINDS[kind], settings=SETTINGS, name=f"specplug, {kind}")


@pytest.fixture(scope="session")
def truth() -> Answers:
    """The plain model's answers."""
    return [greedy(prompt) for prompt in GIVEN]


class Seen:
    """What a test's requests came to.

    Attributes:
        answers: as `inside.generate` returns them.
        steps: as `trees.SEEN` has them.
        counts: drafts "proposed" and "accepted", by source.
        faults: of plug-ins, since the engine started.
    """

    def __init__(self, answers: Answers, steps: list[dict[str, Any]], before: Any, after: Any) -> None:
        self.answers, self.steps = answers, steps
        self.faults = after["faults"]
        self.counts = {
            source: {name: counts[name] - before["by_source"][source][name] for name in ("proposed", "accepted")}
            for source, counts in after["by_source"].items()
            if source != "off"  # which has no drafts, and is there once it counts something
        }

    def ends(self) -> int:
        """Return how many answers a token ended: accepted as a draft, it counts as the one that every step emits."""
        return sum(answer["finish_reason"] == "stop" for answer in self.answers)

    def draft_lengths(self) -> list[int]:
        """Return how wide each step was."""
        return [len(step["tokens"][0]) - 1 for step in self.steps]

    def rows(self, index: int) -> list[tuple[list[int], int]]:
        """Return the parents of a request's nodes, and how many of its drafts were accepted, by step."""
        name = self.answers[index]["meta"]["id"]
        places = [(step, step["requests"].index(name)) for step in self.steps if name in step["requests"]]
        return [(step["parents"][place], step["kept"][place] - 1) for step, place in places]

    def kept(self) -> list[int]:
        """Return of each row of each step how many drafts were accepted."""
        return [count - 1 for step in self.steps for count in step["kept"]]

    def branched(self) -> int:
        """Return how many rows had a node with several children."""
        return sum(branches(parents) for step in self.steps for parents in step["parents"])

    def mixed(self) -> bool:
        """Return whether one step verified rows of different lengths."""
        return any(len({*map(length_of, step["parents"])}) > 1 for step in self.steps)


def length_of(parents: Sequence[int]) -> int:
    return sum(parent >= 0 for parent in parents)


def branches(parents: Sequence[int]) -> bool:
    """Return whether a node has several children."""
    return len({parent for parent in parents if parent >= 0}) < length_of(parents)


def ask(
    engine: Engine,
    params: Sequence[dict[str, Any]],
    *plants: Callable[..., Any],
    given: Sequence[Sequence[int]] = PROMPTS,
    draft_lengths: Sequence[int] = (DRAFT_LENGTH,),
) -> Seen:
    """Generate under the eyes of `trees.watch`; nothing stays in caches."""
    assert engine.call(inside.flush)
    before = engine.inside(watching.counts)
    with engine.planted(trees.plan, trees.watch, *plants, draft_lengths=list(draft_lengths)):
        answers = engine.call(inside.generate, prompts=[list(prompt) for prompt in given], params=list(params))
    assert engine.call(inside.flush)
    return Seen(answers, engine.inside(trees.seen), before, engine.inside(watching.counts))


def ask_right(engine: Engine, truth: Answers, params: Sequence[dict[str, Any]], *plants: Any, **given: Any) -> Seen:
    """Do as `ask` for all prompts; the answers are the plain model's."""
    seen = ask(engine, params, *plants, **given)
    assert_greedy(PROMPTS, truth, seen.answers)
    assert not seen.faults
    return seen


def fields(**given: Any) -> dict[str, Any]:
    """Return sampling parameters with specplug's fields of one request."""
    return {"custom_params": {"specplug": given}}


def reported(answer: Sequence[int], proposer: str = "oracle", **more: Any) -> dict[str, Any]:
    """Return sampling parameters of a request whose drafts are `answer`."""
    return fields(proposer=proposer, references=[{"token_ids": list(answer)}], **more)


def wrong(tokens: Sequence[int]) -> list[int]:
    """Return other tokens, each of them wrong."""
    return [(token + 1) % model().config.vocab_size for token in tokens]


def err(tokens: Sequence[int]) -> list[int]:
    """Return tokens of which each fifth is wrong."""
    return [wrong([token])[0] if place % 5 == 4 else token for place, token in enumerate(tokens)]


PROPOSERS: dict[str, Callable[[list[int]], dict[str, Any]]] = {
    "ngram": lambda answer: {},
    "short": lambda answer: fields(proposer="ngram-reference"),  # where nothing matches well, rows are filled up
    "ngram of a reference": lambda answer: fields(references=[{"token_ids": list(answer)}]),
    "right": reported,
    "often right": lambda answer: reported(err(answer)),
    "always wrong": lambda answer: reported(wrong(answer)),
    "runs out": lambda answer: reported(answer[:13]),
    "thicket": lambda answer: reported(answer, "thicket"),
    "wrong thicket": lambda answer: reported(wrong(answer), "thicket"),
    "bigram": lambda answer: fields(proposer="bigram"),
    "narrow": lambda answer: reported(answer, num_speculative_tokens=3),
    "none": lambda answer: reported(answer, num_speculative_tokens=0),
    "off": lambda answer: reported(answer, enabled=False),
}


EXTENTS = {
    "right": (DRAFT_LENGTH, DRAFT_LENGTH),
    "always wrong": (DRAFT_LENGTH, 0),
    "thicket": (None, DRAFT_LENGTH // 2),  # as a chain it is the path of the right nodes
    "wrong thicket": (None, 0),
    "narrow": (3, 3),
    "none": (0, 0),
    "off": (0, 0),
}
"""The most draft tokens of one request that a step verifies, and the most that one accepts."""


def requested(truth: Answers, *names: str) -> list[dict[str, Any]]:
    """Return sampling parameters of all prompts, their proposers in turn."""
    return [PROPOSERS[names[index % len(names)]](answer["token_ids"]) for index, answer in enumerate(truth)]


def test_it_is_ours_and_as_requested_for(ours, kind):
    facts = ours.inside(inside.facts)
    assert (facts["algorithm"], facts["worker"]) == ("SPECPLUG", "SpeculativeWorker")
    assert (facts["overlap"], facts["topk"]) == (KINDS[kind]["overlap"], KINDS[kind]["topk"])


@pytest.mark.parametrize("first", [0, 7])
def test_all_proposers_in_one_batch(first, ours, kind, truth):
    """Each request has the drafts of its own proposer, no more than it asks for."""
    names = [*PROPOSERS][first:] + [*PROPOSERS][:first]
    seen = ask_right(ours, truth, requested(truth, *names))
    assert seen.mixed()
    accepted = dict.fromkeys(PROPOSERS, 0)
    for index in range(len(PROMPTS)):
        name = names[index % len(names)]
        parents, kept = zip(*seen.rows(index), strict=True)
        longest, deepest = EXTENTS.get(name, (None, None))
        assert longest in (None, max(map(length_of, parents))), name
        assert deepest in (None, max(kept)), name
        assert any(map(branches, parents)) <= kind.startswith("trees"), name
        assert any(map(branches, parents)) or "thicket" not in name or kind.startswith("chains"), name
        accepted[name] += sum(kept)
    found = {source for source, counts in seen.counts.items() if counts["accepted"] > 0}
    assert found >= {"ngram/own text", "ngram/reference", "oracle", "thicket"}
    assert seen.counts["bigram"]["proposed"] > 0
    for source, own in (("thicket", ("thicket",)), ("oracle", ("right", "often right", "runs out", "narrow"))):
        assert 0 <= sum(accepted[name] for name in own) - seen.counts[source]["accepted"] <= seen.ends()


def test_a_trace_has_every_token_and_the_path_that_was_kept(ours, kind, truth, tmp_path):
    params, path = requested(truth, "right", "often right", "thicket", "bigram", "off"), tmp_path / "trace.jsonl"
    with ours.planted(trees.trace, path=str(path)):
        answers = ours.call(inside.generate, prompts=[list(prompt) for prompt in PROMPTS], params=params)
    assert_greedy(PROMPTS, truth, answers)
    rows = [*read_trace(path)]
    for place, answer in enumerate(answers):
        own = [row for row in rows if row.request == answer["meta"]["id"]]
        assert [token for row in own for token in row.emitted] == answer["token_ids"]
        assert ({row.reason for row in own} == {"opted out"}) is (place % 5 == 4)
        for row in own:
            emitted = row.emitted[row.base_len - row.start :]
            assert tuple(row.ids[node] for node in row.accepted_nodes()) == emitted[: row.accepted]
    assert sum(row.accepted for row in rows) > 100
    assert any(row.parents is not None and row.accepted > 1 for row in rows) is kind.startswith("trees")


@pytest.fixture
def best(kind: str) -> str:
    """The proposer whose drafts are as right as the kind may have them."""
    return "thicket" if kind.startswith("trees") else "right"


@pytest.mark.parametrize("plants", [[], [trees.verify_always]])
def test_another_draft_length_at_every_step(plants, ours, truth, best):
    """Also where SGLang's own decoding cannot run: steps without drafts verify the newest token of each row."""
    draft_lengths = [0, 1, 3, 8, 0, 0, 2, 5]
    seen = ask_right(ours, truth, requested(truth, best), *plants, draft_lengths=draft_lengths)
    ran, turn = seen.draft_lengths(), len(draft_lengths)
    assert best != "right" or set(ran) >= set(draft_lengths)
    turns = [draft_lengths[i % turn] for i in range(turn + len(ran))]
    assert any(all(map(int.__le__, ran, turns[i:])) for i in range(turn))  # nothing may be found, never more
    assert sum(seen.kept()) > 0


def test_a_step_is_as_wide_as_what_was_found(ours, truth):
    """Not as wide as was planned; and without drafts it verifies nothing."""
    seen = ask_right(ours, truth, requested(truth, "short"))
    for step in seen.steps:
        assert len(step["tokens"][0]) - 1 == max(map(length_of, step["parents"]))
    assert 0 in seen.draft_lengths()


def test_up_to_max_new_tokens(ours, best):
    """Drafts and the bonus would go beyond, whatever is left."""
    lengths = list(range(1, 13))
    given = PROMPTS[: len(lengths)]
    expected = [greedy(tuple(prompt), length) for prompt, length in zip(given, lengths, strict=True)]
    whole = [greedy(tuple(prompt))["token_ids"] for prompt in given]
    params = [{"max_new_tokens": n, **PROPOSERS[best](answer)} for n, answer in zip(lengths, whole, strict=True)]
    seen = ask(ours, params, given=given)
    assert_greedy(given, expected, seen.answers)
    assert sum(seen.kept()) > len(lengths)


LEFTS = [30, 26, 23, 21]
"""How far from the end of the context prompts end, so that drafts end at every position before it."""


def test_up_to_the_end_of_the_context(ours, best):
    text = [token for prompt in prompts() for token in prompt] * 9
    given = [text[: SMALL["context_length"] - left] for left in LEFTS]
    whole = [continuations(model(), [prompt], left)[0] for prompt, left in zip(given, LEFTS, strict=True)]
    params = [
        {"ignore_eos": True, "max_new_tokens": left, **PROPOSERS[best](answer)}
        for left, answer in zip(LEFTS, whole, strict=True)
    ]
    seen = ask(ours, params, given=given)
    found = [answer["token_ids"] for answer in seen.answers]
    assert all(len(answer) >= left - 2 for left, answer in zip(LEFTS, found, strict=True))  # SGLang stops before it
    expected = [answer[: len(own)] for answer, own in zip(whole, found, strict=True)]
    judge_greedy(forward, given, expected, found).assert_ok()
    assert max(seen.kept()) == (DRAFT_LENGTH // 2 if best == "thicket" else DRAFT_LENGTH)


of_trees = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("trees")], indirect=True)


@of_trees
def test_masks_of_the_whole_text(ours, truth):
    """Masks are as on GPUs."""
    params = requested(truth, "ngram", "thicket", "right", "off")
    assert ask_right(ours, truth, params, trees.mask_as_on_gpus, draft_lengths=[DRAFT_LENGTH, 3, 0]).branched() > 0


@of_trees
def test_grammars_hold(ours):
    """SGLang masks each node by the text that leads to it; for chains see `test_grammar`."""
    given = PROMPTS[:6]
    grammar = {"regex": "(ab|a,)*[0-9]{3}", "max_new_tokens": 24}
    alone = ask(ours, [{**grammar, **PROPOSERS["off"]([])}] * len(given), given=given).answers
    texts = [answer["token_ids"] for answer in alone]
    params = [{**grammar, **PROPOSERS[name](text)} for name, text in zip(["right", "thicket"] * 3, texts, strict=True)]
    seen = ask(ours, params, given=given)
    assert [answer["token_ids"] for answer in seen.answers] == texts
    assert all(set(tokenizer().decode(text, skip_special_tokens=True)) <= set("ab,0123456789") for text in texts)
    assert max(seen.kept()) > 2
    assert seen.branched() > 0
    for step in seen.steps:  # what is illegal is cut before, decoys mostly, with all that hangs on it
        for nodes, parents in zip(step["tokens"], step["parents"], strict=True):
            hung = [token for token, parent in zip(nodes, parents, strict=True) if parent >= 0]
            assert set(tokenizer().decode(hung, skip_special_tokens=True)) <= set("ab,0123456789")
