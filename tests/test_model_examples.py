"""The examples that run models: early exit, and the distillation of a draft."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from specplug.interfaces import PluginContext
from specplug.plugins.specs import ProposerSpec
from specplug.testing.contract import ProposerContract
from specplug.tools.demo import model_path
from specplug.tools.demo.tasks import KINDS
from specplug.types.caps import EngineCaps
from tests.draft_model.tools import greedy
from tests.engines.examples import command
from tests.plugins.planted import registry_of

EXAMPLES = Path(__file__).parents[1] / "examples"

sys.path.insert(0, str(EXAMPLES))
import distill_draft  # noqa: E402
import early_exit_proposer  # noqa: E402

sys.path.remove(str(EXAMPLES))

TINY = str(model_path("tiny"))
PHRASE = [40, 33, 18, 2, 60, 51, 7]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def early_exit(context: PluginContext) -> early_exit_proposer.EarlyExit:
    return early_exit_proposer.EarlyExit(replace(context, target_path=TINY))


def registered() -> ProposerSpec:
    return replace(registry_of(early_exit_proposer).get(ProposerSpec, "early-exit"), factory=early_exit)


class TestEarlyExitContract(ProposerContract):
    spec = registered()
    vocab_size = 2048
    texts = (PHRASE * 3, [8])


@pytest.mark.filterwarnings("error::FutureWarning")
def test_an_exit_after_the_last_layer_drafts_what_the_model_says():
    context = PluginContext(EngineCaps(6), vocab_size=2048, options=early_exit_proposer.EarlyExitSettings(layers=5))
    drafted, confidence = early_exit(context).draft(torch.tensor(PHRASE, dtype=torch.int32).numpy(), 6, None)
    assert drafted == greedy(TINY, PHRASE, 6)
    assert all(0 < it <= 1 for it in confidence)


def test_early_exit_leaves_outputs_as_they_are(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", command("early_exit_proposer.py")[1:])
    early_exit_proposer.main()
    lines = capsys.readouterr().out.splitlines()
    found = [
        re.fullmatch(r"(\w+), (\d) layers: (\S+) tokens per step, (\d+) of (\d+) .*, outputs equal", it) for it in lines
    ]
    assert [(it[1], int(it[2])) for it in found] == [
        (kind, count) for kind in ("edit", "code") for count in range(1, 5)
    ]
    tau = [float(it[3]) for it in found]
    assert all(early <= late for early, late in pairwise(tau[:4]))
    assert tau[0] < 2 < tau[3]


@pytest.mark.parametrize(("draft", "how"), [("tiny-draft", "forward KL"), ("tiny-draft-other", "cross-entropy")])
def test_distillation_saves_a_draft_that_still_drafts(draft, how, monkeypatch, capsys, tmp_path):
    short = ["--draft", draft, "--texts", "8", "--steps", "3", "--held-out", "1", "--max-tokens", "16"]
    monkeypatch.setattr(sys, "argv", [*command("distill_draft.py", {"DIR": str(tmp_path)})[1:], *short])
    distill_draft.main()
    printed = capsys.readouterr().out
    assert f"training by {how}" in printed
    rates = re.findall(r"^(\w+) +(\S+)% -> +(\S+)%   (\S+) -> (\S+)$", printed, re.MULTILINE)
    assert [kind for kind, *_ in rates] == list(KINDS)
    assert sum(float(after) for *_, after in rates) > 6
    old, new = (distill_draft.Model.load(name).model.state_dict() for name in (draft, str(tmp_path)))
    assert old.keys() == new.keys()
    assert any(not torch.equal(old[name], new[name]) for name in old)


@pytest.fixture(scope="module")
def target() -> distill_draft.Model:
    return distill_draft.Model.load("tiny")


@pytest.fixture(scope="module")
def arguments() -> argparse.Namespace:
    return argparse.Namespace(texts=8, seed=3, max_tokens=12, steps=12, minutes=5, learning_rate=1e-3, batch_size=8)


@pytest.mark.parametrize("name", ["tiny-draft", "tiny-draft-other"])
def test_training_lowers_the_loss(name, target, arguments):
    draft = distill_draft.Model.load(name)
    same = name == "tiny-draft"
    examples = distill_draft.make_examples(target, draft, arguments, same=same)
    assert len(examples) == arguments.texts
    teacher = target.model if same else None
    before = distill_draft.loss_of(draft.model, teacher, examples).item()
    distill_draft.train(draft.model, teacher, examples, arguments)
    assert distill_draft.loss_of(draft.model, teacher, examples).item() < 0.9 * before


def test_the_loss_of_a_model_to_itself_is_nothing(target):
    examples = [distill_draft.Example(PHRASE * 2, 9), distill_draft.Example(PHRASE, 1)]
    assert distill_draft.loss_of(target.model, target.model, examples).item() == pytest.approx(0, abs=1e-5)


def test_only_the_answers_tokens_are_learnt():
    ids, labels = distill_draft.padded([distill_draft.Example([5, 6, 7, 8], 2), distill_draft.Example([9, 4], 1)])
    out = distill_draft.IGNORED
    assert ids.tolist() == [[5, 6, 7, 8], [9, 4, 0, 0]]
    assert labels.tolist() == [[out, 7, 8, out], [4, out, out, out]]


def test_an_answer_in_the_ids_of_another_tokenizer_is_the_same_text(target):
    draft = distill_draft.Model.load("tiny-draft-other")
    prompt, answer = (target.tokenizer.encode(text) for text in ("<|code|>def read(pa", "th):\n    return<|end|>"))
    found = distill_draft.encoded(target, draft, prompt, answer)
    assert draft.tokenizer.decode(found.ids) == target.tokenizer.decode(prompt + answer)
    assert draft.tokenizer.decode(found.ids[found.num_prompt :]) in "th):\n    return<|end|>"
    assert draft.tokenizer.decode(found.ids[: found.num_prompt]).startswith("<|code|>def read(pa")
