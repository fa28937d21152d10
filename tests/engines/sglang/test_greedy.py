"""Greedy output of unmodified SGLang is the plain model's, without speculation and with its own n-gram's trees.

Planted mistakes, one for each that an adapter can make in a tree, show that these tests would find a difference.

What is of SGLang's own trees is slow: `test_spec_greedy` has the same of specplug's, with the same stand-ins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from specplug.testing.equality import judge_greedy
from tests.engines.engines import HostDied
from tests.engines.plain import Answers, assert_greedy, forward, greedy, model, prompts, tokenizer
from tests.engines.sglang import inside, trees
from tests.engines.sglang.engines import Engine

PROMPTS = [list(prompt) for prompt in prompts()]  # three times as many as an engine runs at once


@pytest.fixture(scope="session")
def truth() -> Answers:
    """The plain model's answers."""
    return [greedy(prompt) for prompt in prompts()]


@pytest.fixture(
    params=[pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=pytest.mark.slow)],
    ids=["sync", "overlap"],
)
def tree_engine(request: pytest.FixtureRequest, engine: Callable[..., Engine]) -> Engine:
    """SGLang's n-gram with trees, a step at a time and overlapped."""
    return engine("NGRAM", topk=4, overlap=request.param, name=f"trees, {'overlapped' if request.param else 'sync'}")


@contextmanager
def planted(engine: Engine, *plants: Callable[..., Any], **arguments: Any) -> Iterator[None]:
    """Run functions of `trees` in the scheduler, the first with arguments, and undo them; nothing stays in caches."""
    assert engine.call(inside.flush)
    try:
        for number, plant in enumerate(plants):
            engine.inside(plant, **(arguments if number == 0 else {}))
        yield
    finally:
        assert engine.inside(trees.restore) >= len(plants)
        assert engine.call(inside.flush)


def right_drafts(truth: Answers, decoys: bool) -> dict[str, Any]:
    """Return arguments of `trees.draft`."""
    texts = [[*prompt, *answer["token_ids"]] for prompt, answer in zip(PROMPTS, truth, strict=True)]
    return {"texts": texts, "decoys": decoys, "vocab_size": model().config.vocab_size}


def ask(engine: Engine) -> Answers:
    return engine.call(inside.generate, prompts=PROMPTS)


def assert_differs(truth: Answers, answers: Answers) -> None:
    """The judge of greedy output must not let this pass."""
    judged = judge_greedy(forward, PROMPTS, *([answer["token_ids"] for answer in each] for each in (truth, answers)))
    assert judged.failures, judged


def branches(seen: list[dict[str, Any]]) -> bool:
    """Return whether a node had several children; SGLang pads trees with token 0, which does not count."""
    for step in seen:
        for tokens, parents in zip(step["tokens"], step["parents"], strict=True):
            hung = [parent for token, parent in zip(tokens, parents, strict=True) if parent >= 0 and token]
            if len(set(hung)) < len(hung):
                return True
    return False


def test_baseline_is_the_plain_model(baseline, truth):
    assert baseline.inside(inside.facts)["worker"] is None
    assert_greedy(PROMPTS, truth, ask(baseline))


@pytest.mark.slow  # an engine of its own
def test_baseline_without_overlap_is_the_plain_model(engine, truth):
    sync = engine(overlap=False, name="baseline sync")
    assert not sync.inside(inside.facts)["overlap"]
    assert_greedy(PROMPTS, truth, ask(sync))


@pytest.mark.slow  # of SGLang itself, shown once and not ours to hold
def test_sglangs_own_trees(tree_engine, truth):
    """Twice, as its n-gram learns from answers only."""
    facts = tree_engine.inside(inside.facts)
    assert (facts["algorithm"], facts["topk"], facts["worker"]) == ("NGRAM", 4, "NGRAMWorker")
    with planted(tree_engine, trees.watch):
        for _ in range(2):
            answers = ask(tree_engine)
            assert_greedy(PROMPTS, truth, answers)
        seen = tree_engine.inside(trees.seen)
    assert branches(seen)
    assert sum(answer["meta"]["spec_num_correct_drafts"] for answer in answers) > len(PROMPTS)


def test_overlap_is_what_was_requested_for(tree_engine):
    requested = not tree_engine.configuration.arguments["disable_overlap_schedule"]
    assert tree_engine.inside(inside.facts)["overlap"] is requested


def test_grammars_hold_in_trees(tree_engine, baseline):
    """With a grammar SGLang masks each node of a tree by the text that leads to it."""
    given = {"prompts": PROMPTS[:4], "params": {"regex": "(ab|a,)*[0-9]{3}", "max_new_tokens": 24}}
    alone = baseline.call(inside.generate, **given)
    with planted(tree_engine, trees.watch):
        answers = tree_engine.call(inside.generate, **given)
        seen = tree_engine.inside(trees.seen)
    for one, other in zip(answers, alone, strict=True):
        assert one["token_ids"] == other["token_ids"]
        assert set(tokenizer().decode(one["token_ids"], skip_special_tokens=True)) <= set("ab,0123456789")
    assert max(count for step in seen for count in step["kept"]) > 1


@pytest.mark.parametrize("decoys", [False, True], ids=["chains", "decoys"])
def test_right_drafts_in_trees(decoys, tree_engine, truth):
    """Half of the nodes are accepted, or all; with decoys none of them lies where its place in the text is."""
    with planted(tree_engine, trees.draft, trees.watch, **right_drafts(truth, decoys)):
        assert_greedy(PROMPTS, truth, ask(tree_engine))
        seen = tree_engine.inside(trees.seen)
    kept = [count for step in seen for count in step["kept"]]
    assert max(kept) == (5 if decoys else 9)
    assert sum(kept) > (3 if decoys else 5) * len(kept)


def test_masks_of_the_whole_text(tree_engine, truth):
    """Masks are as on GPUs; `trees.hide_begin` plants a wrong one."""
    with planted(tree_engine, trees.draft, trees.whole_masks, **right_drafts(truth, decoys=True)):
        assert_greedy(PROMPTS, truth, ask(tree_engine))


@pytest.mark.slow  # test_spec_greedy plants them, too
@pytest.mark.parametrize("mistake", [trees.lose_moves, trees.show_siblings, trees.count_in_rows, trees.hide_begin])
def test_a_mistake_in_a_tree_is_seen(mistake, tree_engine, truth):
    with planted(tree_engine, trees.draft, mistake, **right_drafts(truth, decoys=True)):
        assert_differs(truth, ask(tree_engine))
    assert_greedy(PROMPTS, truth, ask(tree_engine))


@pytest.mark.slow  # test_spec_greedy sees it, too
def test_a_step_of_another_draft_length_is_seen(engine, truth):
    """FlashAttention reads the draft length that it was built for, so any other would read out of bounds."""
    separate = engine("NGRAM", topk=4, overlap=False, max_running_requests=2, name="separate")
    separate.inside(trees.narrow, draft_length=5)
    separate.inside(trees.draft, **right_drafts(truth, decoys=False))
    with pytest.raises(HostDied, match="built to verify 9 tokens per request, not 5"):
        ask(separate)


@pytest.fixture
def chain_engine(engine: Callable[..., Engine]) -> Engine:
    """Started for chains."""
    return engine("NGRAM", topk=1, name="chains")


@pytest.mark.slow  # test_stand_ins has it of the stand-in for attention alone
@pytest.mark.parametrize("mistake", [trees.show_siblings, trees.count_in_rows])
def test_in_chains_these_are_no_mistakes(mistake, chain_engine, truth):
    with planted(chain_engine, trees.draft, mistake, trees.watch, **right_drafts(truth, decoys=False)):
        assert_greedy(PROMPTS, truth, ask(chain_engine))
        seen = chain_engine.inside(trees.seen)
    assert max(count for step in seen for count in step["kept"]) == 9


@pytest.mark.slow  # test_stand_ins has it of the stand-in for attention alone
def test_a_tree_in_an_engine_started_for_chains_is_seen(chain_engine, truth):
    """Like FlashAttention, the backend reads masks only when `speculative_eagle_topk` is above 1."""
    with planted(chain_engine, trees.draft, **right_drafts(truth, decoys=True)):
        assert_differs(truth, ask(chain_engine))


@pytest.mark.slow  # of SGLang itself, shown once and not ours to hold
def test_sglangs_own_ngram_drafts_trees_even_when_started_for_chains(chain_engine, truth):
    """Breadth 1 does not keep it from hanging several matches on the root, so there its output is not the model's."""
    with planted(chain_engine, trees.watch):
        answers = [answer for _ in range(2) for answer in ask(chain_engine)]
        seen = chain_engine.inside(trees.seen)
    assert branches(seen)
    assert [answer["token_ids"] for answer in answers] != [answer["token_ids"] for answer in [*truth, *truth]]
