"""`specplug explain` on a trace of the embedded engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specplug.plugins.embedded import TextRequest, embedded_engine
from specplug.settings import load_settings
from specplug.tools.cli import output
from specplug.tools.demo import model_path
from specplug.trace import read_trace
from tests.tools.cli.test_html_report import read
from tests.tools.cli.tools import invoke, stated

PROMPT = "<|document|>a = 1\nb = 2\nc = 3\nd = 4<|edit|>b = 2\nc = 5\nd = 4<|answer|>"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Return a trace, and the id and the text of an answer in it."""
    path = tmp_path_factory.mktemp("explain") / "trace.jsonl"
    settings = load_settings({"policy": "fixed", "trace": {"path": str(path)}}, env={}).settings
    engine = embedded_engine()(str(model_path("tiny")), settings, threads=1)
    text = "".join(update.text for update in engine.stream([TextRequest(prompt=PROMPT, max_tokens=40)]))
    engine.close()
    return path, next(read_trace(path)).request, text


def test_json_has_the_text_and_what_drafted_it(traced):
    path, request, text = traced
    found = stated("explain", path, request, "--tokenizer", "tiny")
    assert found["text"] == text == "a = 1\nb = 2\nc = 5\nd = 4"
    assert found["sources"]["ngram/own text"]["kept"] > 5
    assert found["tau"] > 1.5
    assert stated("explain", path, request)["text"].split() == [
        str(token) for row in read_trace(path) for token in row.emitted
    ]


def test_a_terminal_shows_sources_by_colours(traced, monkeypatch):
    path, request, text = traced
    plain = output.console

    def coloured(**how):
        made = plain(**how)
        made._force_terminal, made._color_system = True, 1
        return made

    shown = invoke("explain", path, request, "--tokenizer", "tiny", code=0).stdout
    assert re.sub(r"\[-\d+\]", "", shown).startswith(text), "marks are the only addition"
    assert re.search(r"ngram/own text +│ \d+ tokens of the answer, of \d+ drafted", shown)
    assert "steps: nothing found" in shown
    assert re.search(r"^- \d+ of \d+ steps had", shown, re.MULTILINE)
    monkeypatch.setattr(output, "console", coloured)
    assert "\x1b[32m" in invoke("explain", path, request, "--tokenizer", "tiny", code=0).stdout


def test_a_page_is_written(traced, tmp_path):
    path, request, text = traced
    run = invoke("explain", path, request, "--tokenizer", "tiny", "--html", tmp_path / "a.html", code=0)
    assert run.stdout == ""
    page, _ = read(tmp_path / "a.html")
    assert 'title="step 1, ngram/own text, ' in page
    assert re.search(r'<p class="verdict ">\d+ (of \d+ )?steps', page)
    assert re.search(r'<svg class="bars".*<title>step 1: [\d.]+ ms, 1 in the batch', page)
    (body,) = re.findall('<pre class="text">(.*)</pre>\n<table>', page, re.DOTALL)
    assert re.sub("<[^>]*>", "", re.sub(r">\[-\d+\]<", "><", body)) == text
    run = invoke("explain", path, request, "--html", tmp_path / "no" / "a.html", code=2)
    assert "cannot write the report" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nobody",), "no such request in the trace"),
        (("{id}", "--tenant", "acme"), "no such request"),
        (("{id}", "--tokenizer", "none"), "no such tokenizer"),
        (("--html", "a.html"), "a page shows one answer"),
    ],
)
def test_mistakes(traced, arguments, message):
    path, request, _ = traced
    given = [each.format(id=request) for each in arguments]
    assert message in invoke("explain", path, *given, code=2).stderr
    assert "cannot read the trace" in invoke("explain", path.with_name("x"), "a", code=2).stderr
