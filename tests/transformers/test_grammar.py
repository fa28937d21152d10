"""Grammars draft what they force, and cut what they forbid."""

from __future__ import annotations

import pytest
import torch

from specplug.explain.explanation import explained, rows_of
from specplug.testing.equality import g_test
from specplug.text.token_texts import decoder
from specplug.trace import read_trace
from specplug_transformers import Engine, GenerateRequest, SamplingParams, generate
from tests.transformers import toys
from tests.transformers.conftest import greedy, requests_of
from tests.transformers.toys import EOS, VOCAB, Oracle, Recorder, prompts

PROMPTS = prompts(4, seed=3)
MAX_TOKENS = 24
FORM = [40, 41, 42, 43, None, 50, 51, 52, None, 60, 61, EOS]
"""A form to fill in: None is any id from 3 to 39."""


def form(prompt):
    """A grammar of the form, furious about texts that it does not allow."""

    def allowed(_batch: int, ids: torch.Tensor) -> list[int]:
        stated = ids[len(prompt) :].tolist()
        for place, token in zip(FORM, stated, strict=False):
            if token not in ([place] if place is not None else range(3, 40)):
                raise KeyError("asked about a text that the grammar does not allow")
        place = FORM[len(stated)] if len(stated) < len(FORM) else EOS
        return [place] if place is not None else list(range(3, 40))

    return allowed


def requested(**params) -> list[GenerateRequest]:
    return [
        request
        for prompt in PROMPTS
        for request in requests_of([prompt], max_tokens=MAX_TOKENS, allowed_tokens=form(prompt), **params)
    ]


def named(requests: list[GenerateRequest]) -> list[GenerateRequest]:
    return [
        GenerateRequest(prompt=request.prompt, params=request.params, request_id=f"mine-{place}")
        for place, request in enumerate(requests)
    ]


@pytest.mark.parametrize("proposer", ["garbage", "oracle"])
@pytest.mark.parametrize("draft_length", [1, 8])
def test_as_without_speculation(proposer, draft_length, make_engine, llama):
    expected = [greedy(llama, prompt, MAX_TOKENS, prefix_allowed_tokens_fn=form(prompt)) for prompt in PROMPTS]
    Oracle.answers = {f"mine-{place}": answer for place, answer in enumerate(expected)}
    engine = make_engine(proposer=proposer, num_speculative_tokens=draft_length)
    outputs = engine.generate([*named(requested()), *requests_of(PROMPTS, max_tokens=MAX_TOKENS)])
    assert [list(output.token_ids) for output in outputs[: len(PROMPTS)]] == expected
    plain = [greedy(llama, prompt, MAX_TOKENS) for prompt in PROMPTS]
    assert [list(output.token_ids) for output in outputs[len(PROMPTS) :]] == plain
    counts = engine.metrics.snapshot()
    assert not counts.faults
    assert counts.by_source["grammar"].accepted == counts.by_source["grammar"].tested
    assert proposer == "oracle" or counts.by_source["grammar"].accepted


def test_forced_tokens_are_accepted_and_illegal_ones_are_not_verified(make_engine):
    """Of the form's twelve tokens ten are forced: it takes three steps, and one that reads the prompt."""
    engine = make_engine(proposer="garbage", num_speculative_tokens=8)
    outputs = engine.generate(requested())
    assert all(len(output.token_ids) == len(FORM) for output in outputs)
    assert engine.steps <= 5
    counts = engine.metrics.snapshot()
    grammar, garbage = counts.by_source["grammar"], counts.by_source["garbage"]
    assert grammar.proposed == grammar.verified
    assert grammar.accepted == grammar.tested >= 6 * len(PROMPTS)
    assert garbage.cut_by_grammar > 8, "garbage is illegal nearly always"
    assert garbage.verified == garbage.proposed - garbage.cut_by_grammar
    assert garbage.verified <= sum(place is None for place in FORM) * len(PROMPTS)
    assert counts.total.verified <= 8 * counts.total.target_steps


def test_a_planted_illegal_draft_costs_nothing(make_engine):
    engine = make_engine(proposer="oracle", num_speculative_tokens=8)
    Oracle.answers = {f"mine-{place}": [90] * MAX_TOKENS for place in range(len(PROMPTS))}
    engine.generate(named(requested()))
    counts = engine.metrics.snapshot().by_source
    assert counts["oracle"].proposed == counts["oracle"].cut_by_grammar > 8
    assert counts["oracle"].verified == 0
    assert counts["grammar"].accepted > 8


def test_traced_under_a_name_of_their_own(make_engine, tmp_path):
    path = tmp_path / "trace.jsonl"
    engine = make_engine(proposer="garbage", num_speculative_tokens=8, trace={"path": str(path)})
    outputs = engine.generate(requested())
    engine.close()
    rows = [row for row in read_trace(path) if "grammar" in row.source]
    assert rows
    for row in rows:
        assert row.confidence == (1.0,) * len(row.ids)
        assert (row.accepted, row.reason) == (len(row.ids), "accepted")
        assert set(row.ids) <= {token for token in FORM if token is not None}
        assert EOS not in row.ids, "the step that verifies the token before it emits it anyway"
    for output in outputs:
        found = explained(rows_of(path, output.request_id), decoder(None))
        assert found.text == "".join(f" {token}" for token in output.token_ids)
        assert len(found.steps) == output.steps
        assert found.sources["grammar"]["kept"] == sum(len(row.ids) for row in rows if row.request == output.request_id)


ENDED = [40, 41, 42, EOS]


def only(prompt: list[int]):
    """A grammar of one text, all of it forced."""

    def allowed(_batch: int, ids: torch.Tensor) -> list[int]:
        stated = ids[len(prompt) :].tolist()
        assert stated == ENDED[: len(stated)]
        assert len(stated) < len(ENDED), "called after the end"
        return [ENDED[len(stated)]]

    return allowed


@pytest.mark.parametrize("drafted", [[], [*ENDED, 90, 91]])
def test_a_grammar_that_ends_is_not_requested_further(make_engine, drafted):
    engine = make_engine(proposer="oracle", num_speculative_tokens=8)
    Oracle.answers = {"mine-0": drafted}
    [output] = engine.generate(named(requests_of(PROMPTS[:1], max_tokens=MAX_TOKENS, allowed_tokens=only(PROMPTS[0]))))
    assert list(output.token_ids) == ENDED
    assert not engine.metrics.snapshot().faults


def test_nor_behind_model_generate(llama):
    """The draft repeats the prompt, in which the text goes on after its end."""
    prompt = [*ENDED, 90, 91, 92, 4]
    options = {"max_new_tokens": MAX_TOKENS, "prefix_allowed_tokens_fn": only(prompt), "eos_token_id": [EOS, VOCAB]}
    settings = {"proposer": "ngram-reference", "policy": "fixed", "num_speculative_tokens": 6}
    found = generate(
        llama, torch.tensor([prompt]), specplug={**settings, "faults": {"host_deadline_ms": None}}, **options
    )
    assert found[0, len(prompt) :].tolist() == ENDED


@pytest.mark.parametrize("raises", ["grammar", "processor", "stop_when"])
def test_what_raises_names_its_request_and_the_others_go_on(raises, make_engine, llama):
    def broken(*_: object) -> list[int]:
        raise ZeroDivisionError("planted")

    params = SamplingParams(max_tokens=9, allowed_tokens=broken if raises == "grammar" else None)
    engine = make_engine(proposer="garbage")
    engine.add(GenerateRequest(prompt=[5, 6], request_id="good", params=SamplingParams(max_tokens=9)))
    processors = broken if raises == "processor" else None
    stop_when = broken if raises == "stop_when" else None
    bad = GenerateRequest(prompt=[5, 6], request_id="bad", params=params, processors=processors, stop_when=stop_when)
    engine.add(bad)
    with pytest.raises(ZeroDivisionError) as caught:
        list(engine.run())
    assert "'bad'" in caught.value.__notes__[0]
    engine.abort("bad")
    *_, last = engine.run()
    assert (last.request_id, list(last.token_ids)) == ("good", greedy(llama, [5, 6], 9))


def test_plug_ins_know_which_rows_have_a_grammar(make_engine):
    engine = make_engine(proposer="recorder")
    engine.generate(
        requests_of([[5], [6]], max_tokens=2) + requests_of([[7]], max_tokens=2, allowed_tokens=lambda _row, _ids: [9])
    )
    assert Recorder.newest.grammars[0] == [False, False, True]


FREE = [10, 11, 12, 13]


DRAWN = toys.testkit("uniform-probs")


@pytest.mark.parametrize(("proposer", "first"), [("garbage", [40]), (DRAWN.name, [])])
def test_sampled_output_keeps_its_distribution(proposer, first, llama):
    """Two free tokens around a forced one follow the plain model's own distribution at temperature 1."""
    prompt, count = PROMPTS[0], 600

    def allowed(_batch: int, ids: torch.Tensor) -> list[int]:
        stated = len(ids) - len(prompt) - len(first)
        return first if stated < 0 else (FREE, [41], FREE)[stated] if stated < 3 else [EOS]

    settings = {"num_speculative_tokens": 4, "proposer": proposer, "policy": "fixed"}
    settings["faults"] = {"host_deadline_ms": None}
    if proposer == DRAWN.name:  # two thirds of what it draws no grammar here allows
        settings["options"] = {DRAWN.name: {"tokens": [12, 90, 91]}}
    engine = Engine(llama, settings=settings, max_num_seqs=64, registry=toys.make_registry([DRAWN]))
    params = [SamplingParams(max_tokens=5, temperature=1.0, seed=seed, allowed_tokens=allowed) for seed in range(count)]
    outputs = engine.generate([GenerateRequest(prompt=prompt, params=own) for own in params])
    total = engine.metrics.snapshot().total
    engine.close()
    found = torch.zeros(len(FREE), len(FREE))
    for output in outputs:
        one, forced, other, *_ = output.token_ids[len(first) :]
        assert forced == 41
        found[FREE.index(one), FREE.index(other)] += 1
    expected = torch.empty(len(FREE), len(FREE), dtype=torch.float64)
    for row, token in enumerate(FREE):
        one, other = (distribution_of(llama, text) for text in ([*prompt, *first], [*prompt, *first, token, 41]))
        expected[row] = one[row] * other
    assert g_test(found.flatten().numpy(), expected.flatten().numpy()) > 1e-4
    assert total.accepted > count / 2


def distribution_of(model, text: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([text])).logits[0, -1, FREE].double().softmax(-1)
