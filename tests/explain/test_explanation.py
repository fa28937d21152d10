"""Explanations: what is said of an answer's tokens, steps and time, and how it is shown."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from specplug.errors import TraceError
from specplug.explain import explanation
from specplug.explain.explanation import BARE, LOST, OWN, explained, rows_of
from specplug.text.token_texts import decoder, token_texts
from specplug.text.tokenizers import load_tokenizer
from specplug.tools.cli.explain import page_parts
from specplug.trace import TraceRow, TraceWriter

NUMBERS = decoder(None)
ROW = TraceRow(
    request="r",
    tenant="",
    step=0,
    time=100.0,
    batch=1,
    start=5,
    emitted=(1,),
    base_len=5,
    allowed=4,
    found=0,
    ids=(),
    confidence=(),
    source=(),
    parents=None,
    verified=0,
    accepted=0,
    reason="nothing found",
)


def drafted(row: TraceRow, ids: list[int], accepted: int, reason: str, source: str = "a", **more) -> TraceRow:
    levels, names = (0.5,) * len(ids), (source,) * len(ids)
    about = {"found": len(ids), "ids": tuple(ids), "confidence": levels, "source": names, "verified": len(ids)}
    return replace(row, **about, accepted=accepted, reason=reason, **more)


def following(rows: list[TraceRow], emitted: list[int], seconds: float = 0.01) -> TraceRow:
    """Return a row without a draft that comes after others."""
    last = rows[-1]
    length = last.start + len(last.emitted)
    return replace(
        ROW, step=last.step + 1, time=last.time + seconds, start=length, base_len=length, emitted=tuple(emitted)
    )


def kinds(found) -> list[tuple[str, str]]:
    return [(span.text, span.kind) for span in found.spans()]


def test_tokens_sources_and_cuts():
    rows = [ROW]
    rows.append(drafted(following(rows, [2, 3, 4]), [2, 3, 9, 9], 2, "rejected"))
    rows.append(drafted(following(rows, [5, 6]), [5], 1, "accepted", "b", allowed=1))
    rows.append(drafted(following(rows, [7]), [7, 8], 1, "stopped"))
    found = explained(rows, NUMBERS)
    assert kinds(found) == [
        *[(" 1", BARE), (" 2", "a"), (" 3", "a"), ("[-2]", LOST), (" 4", OWN), (" 5", "b"), (" 6", OWN), (" 7", "a")]
    ]
    assert (found.text, found.tau) == (" 1 2 3 4 5 6 7", 7 / 4)
    assert found.sources == {"a": {"kept": 3, "drafted": 6}, "b": {"kept": 1, "drafted": 1}}
    assert found.undrafted == {"nothing found": 1}
    assert [step.seconds for step in found.steps] == [None, 0.01, 0.01, 0.01]
    (mark,) = [span.about for span in found.spans() if span.kind == LOST]
    assert mark == "step 1, rejected: ' 9' (a, 50% sure), ' 9' (a, 50% sure)"


def test_what_a_grammar_adds_belongs_to_the_step():
    rows = [drafted(replace(ROW, emitted=(1, 2, 3, 4)), [1], 1, "accepted")]
    rows.append(drafted(replace(rows[0], start=0, emitted=(), base_len=6), [2, 3], 2, "accepted", "grammar"))
    found = explained(rows, NUMBERS)
    assert kinds(found) == [(" 1", "a"), (" 2", "grammar"), (" 3", "grammar"), (" 4", OWN)]
    assert len(found.steps) == 1


def test_the_path_of_a_tree():
    row = drafted(replace(ROW, emitted=(1, 2, 3)), [9, 1, 8, 2], 2, "accepted", parents=(-1, -1, 0, 1))
    found = explained([row], NUMBERS)
    assert kinds(found) == [(" 1", "a"), (" 2", "a"), (" 3", OWN)], "the other branch is no loss"
    assert [token.text for token in found.steps[0].lost] == [" 9", " 8"]


def test_tokens_of_steps_that_have_no_rows():
    rows = [replace(ROW, emitted=(1, 2), base_len=6)]  # SGLang's prefills
    rows.append(replace(following(rows, [3, 4]), base_len=8))
    found = explained(rows, NUMBERS)
    assert [step.reason for step in found.steps] == ["prefill", "nothing found", "not traced", "nothing found"]
    assert found.text == " 1 2 3 4"


def test_an_id_that_is_used_again_means_its_last_use(tmp_path):
    rows = [ROW, following([ROW], [2]), replace(ROW, emitted=(3,)), replace(following([ROW], [4]), time=101.0)]
    assert explained(rows, NUMBERS).text == " 3 4"


@pytest.fixture
def traced(tmp_path):
    writer = TraceWriter(tmp_path / "trace.jsonl")
    names = ("chatcmpl-1-aa", "chatcmpl-12-ab", "0_cmpl-3-0-ac", "1_cmpl-3-0-ad", "exact", "exactly")
    writer.write(*(replace(ROW, request=name, tenant="acme" if "exact" in name else "") for name in names))
    writer.close()
    return tmp_path / "trace.jsonl"


@pytest.mark.parametrize(
    ("wanted", "tenant", "found"),
    [
        *(("chatcmpl-1-", None, "chatcmpl-1-aa"), ("cmpl-3-0-ad", "", "1_cmpl-3-0-ad"), ("exact", None, "exact")),
        *(("exact", "acme", "exact"), ("0_cmpl-3-0-ac", None, "0_cmpl-3-0-ac")),
    ],
)
def test_a_request_is_found_by_the_begin_of_its_id(traced, wanted, tenant, found):
    assert {row.request for row in rows_of(traced, wanted, tenant)} == {found}


def test_a_request_that_newer_answers_have_displaced_meanwhile_is_gone(traced, monkeypatch):
    monkeypatch.setattr(explanation, "read_trace", lambda *_: [])
    with pytest.raises(TraceError, match="no such request"):
        rows_of(traced, "exact")


@pytest.mark.parametrize(
    ("wanted", "tenant", "message"),
    [
        (
            "chatcmpl-1",
            None,
            "such an id; found 2, the newest chatcmpl-12-ab, chatcmpl-1-aa; .* Name one of them in full",
        ),
        ("exa", None, r"the newest exactly \(tenant 'acme'\), exact \(tenant 'acme'\)"),
        ("", None, "found 6, the newest exactly"),
        ("exact", "", "no such request"),
        ("exact", "acm", "no such request"),
        ("mpl", None, "no such request"),
        ("cmpl-3", "acme", "no such request"),
    ],
)
def test_no_request_or_several(traced, wanted, tenant, message):
    with pytest.raises(TraceError, match=message) as raised:
        rows_of(traced, wanted, tenant)
    assert ("acme" in str(raised.value)) is (tenant is None and wanted in ("exa", ""))


def test_texts_of_tokens_join_to_the_text():
    tokenizer = load_tokenizer("tiny")
    for text in ("def f(x):\n    return x  # héé ☃ 🎉 done", " leading", "日本語🎉"):
        texts = token_texts(decoder(tokenizer.library), tokenizer.encode(text).tolist())
        assert "".join(texts) == text
    cut = tokenizer.encode("🎉").tolist()[:-1]
    assert "".join(token_texts(decoder(tokenizer.library), cut)) == tokenizer.decode(cut)


VERDICTS = [
    (lambda rows: following(rows, [1]), "9 of 9 steps had no draft, as nothing was found"),
    (
        lambda rows: replace(following(rows, [1]), reason="opted out"),
        "9 of 9 steps had no draft, as the request takes none",
    ),
    (lambda rows: replace(following(rows, [1]), reason="switched off"), "as an operator had switched speculation off"),
    (lambda rows: drafted(following(rows, [1]), [2, 3], 0, "rejected"), "9 of 9 steps had a draft whose first token"),
    (
        lambda rows: drafted(following(rows, [1, 2]), [1, 3], 1, "rejected"),
        "9 of 9 steps had a draft of which the model",
    ),
    (lambda rows: drafted(following(rows, [1, 2]), [1], 1, "accepted", allowed=1), "a longer limit may gain"),
    (
        lambda rows: drafted(following(rows, [1, 2]), [1], 1, "accepted"),
        "9 of 9 steps had a draft that was kept whole.",
    ),
    (lambda rows: drafted(following(rows, [1]), [2, 3], 0, "never verified"), "that the engine dropped"),
    (lambda rows: replace(following(rows, [1]), found=3, reason="trimmed"), "a draft that the policy dropped"),
]


@pytest.mark.parametrize(("step", "sentence"), VERDICTS)
def test_the_verdict_names_what_most_steps_were_lost_to(step, sentence):
    rows = [replace(ROW, reason="prefill")]
    for _ in range(9):
        rows.append(step(rows))
    found = explained(rows, NUMBERS).verdict
    assert found[0] == "9 steps took 0.09 s, 10.0 ms each in the median."
    assert sentence in found[1]


def test_the_verdict_tells_long_steps_from_bad_drafts():
    rows = [ROW]
    for number in range(20):
        rows.append(following(rows, [1], 0.5 if number in (7, 8) else 0.01))
    (first, *_, last) = explained(rows, NUMBERS).verdict
    assert first.startswith(
        "2 of 20 steps took 1.00 of 1.18 s, 500 ms each where the median is 10.0 ms: other requests'"
    )
    assert last == "The longest part without a kept draft token has 21 tokens, from token 1 on."


def test_a_clock_that_is_set_back_makes_no_steps_long():
    rows = [ROW, following([ROW], [1], -0.5)]
    assert not any("took" in sentence for sentence in explained(rows, NUMBERS).verdict)
    rows.append(following(rows, [1], 0.25))
    assert explained(rows, NUMBERS).verdict[0] == "1 steps took 0.25 s, 250.0 ms each in the median."


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


HOSTILE = '"><script>alert(1)</script><img src=x onerror=y>'


def test_a_page_escapes_what_clients_and_models_wrote():
    rows = [replace(ROW, request=HOSTILE, tenant=HOSTILE, reason=HOSTILE, emitted=(1, 2))]
    rows.append(drafted(following(rows, [3, 4]), [3, 9], 1, HOSTILE, source=HOSTILE))
    text = "".join(page_parts(explained(rows, lambda ids: HOSTILE * len(ids))))
    parser = Tags()
    parser.feed(text)
    assert not parser.tags & {"script", "img", "link", "a", "iframe"}
    assert not parser.attributes & {"onerror", "src", "href"}
    assert not re.search(r"https?://", text), "it needs nothing else"
    assert text.count("&lt;script&gt;") >= 10
