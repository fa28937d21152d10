"""The HTML reports of `specplug bench` and `specplug audit`: whole, self-contained, escaped, and without keys."""

from __future__ import annotations

import json
import re
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.text import Text

from specplug.tools.bench.ratio import Ratio
from specplug.tools.cli.html_report import without_keys, write_report
from specplug.tools.cli.output import table
from tests.tools.bench.server import FakeServer
from tests.tools.cli.tools import invoke
from tests.tools.client.test_nonsense import WrongServer

HOSTILE = '<script>alert("x")</script> & $title'


class Page(HTMLParser):
    """A page's tags and attributes; every tag but `VOID` is closed in order."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(path: Path) -> tuple[str, Page]:
    """Return a page that loads nothing from elsewhere."""
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    loaded = [attributes for _, attributes in page.tags if {"src", "href"} & attributes.keys()]
    assert not [it for it in loaded if "://" in str(it)]
    assert "script" not in {tag for tag, _ in page.tags}
    assert "url(http" not in text
    return text, page


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"{number:02d}" * (number + 1), "kind": ("code", "chat")[number % 2]} for number in range(8)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_benchmark_is_handed_on_as_one_file(prompts, tmp_path, monkeypatch):
    server, path = FakeServer(), tmp_path / "bench.html"
    with server.running() as url:
        monkeypatch.setattr(sys, "argv", ["specplug", "bench", url, "--operator-key", "sesame"])
        plain = ("bench", url, prompts, "--concurrency", "1,2", "--limit", "6", "--html", path)
        shown = invoke(*plain, "--json")
    text, page = read(path)
    assert f"<td>specplug bench {url} --operator-key KEY</td>" in re.sub(r' class="\w*"', "", text)
    assert "sesame" not in text
    assert "fake: speculation on against speculation off, 2 in flight" in text
    assert "Texts identical on both sides: 12 of 12." in text
    data = unescape(re.search(r"<details>.*<pre>(.*)</pre>", text, re.DOTALL)[1])  # type: ignore[index]
    stated = json.loads(data)
    assert stated == json.loads(shown.stdout)
    plots = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(plots) == 2
    for plot, course in zip(plots, stated["runs"], strict=True):
        words = "".join(ElementTree.fromstring(plot).itertext())
        assert f"with 95 % intervals; {course['concurrency']} in flight" in words
        for row in course["rows"]:
            assert f"{row['kind']} ({row['prompts']})" in words
            assert str(Ratio(**row["ratio"])) in words
    assert [tag for tag, _ in page.tags].count("table") == 3


def test_failures_and_differing_texts_head_the_page(prompts, tmp_path):
    server, path = FakeServer(), tmp_path / "bench.html"
    server.garbles, server.fails = True, {"00"}
    with server.running() as url:
        invoke("bench", url, prompts, "--html", path, code=1)
    text, _ = read(path)
    assert 'class="verdict red">texts differ; requests failed; 1 in flight: ' in text
    assert "a request failed: POST" in text


def test_an_audit_is_handed_on_as_one_file(prompts, tmp_path):
    server, path = WrongServer(), tmp_path / "audit.html"
    with server.running() as url:
        invoke("audit", url, "--prompts", prompts, "--check", "greedy", "--limit", "2", "--html", path)
    text, _ = read(path)
    assert "specplug audit: " in text
    assert re.search(r'class="verdict (green|yellow|red)">The audit ', text)
    assert re.search(r"<td[^>]*>greedy</td>", text)
    assert "draft tokens at work" in text


def test_everything_is_escaped_and_passwords_are_left_out(tmp_path, monkeypatch):
    path, address = tmp_path / "page.html", "https://user:secret@example.org/x"
    monkeypatch.setattr(sys, "argv", ["specplug", HOSTILE, address])
    parts = [table(HOSTILE, [HOSTILE], [[HOSTILE], [Text(HOSTILE, "red")]]), HOSTILE, Text(HOSTILE, HOSTILE)]
    write_report(path, HOSTILE, Text(HOSTILE, "green"), parts, [], {HOSTILE: [HOSTILE, address]})
    text, _ = read(path)
    assert text.count("&lt;script&gt;") == 12
    assert "secret" not in text
    assert text.count("https://***@example.org/x") == 2
    assert '<td class="red">' in text


def test_without_matplotlib_a_line_stands_in_place_of_the_plots(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = tmp_path / "page.html"
    write_report(path, "title", Text("verdict"), ["text"], [lambda figure: figure.fail()], {})
    assert "pip install specplug[plot]" in read(path)[0]


def test_a_file_that_cannot_be_written_is_refused_before_the_run(prompts, tmp_path):
    server = FakeServer()
    with server.running() as url:
        for path in (tmp_path, tmp_path / "none" / "bench.html"):
            refused = invoke("bench", url, prompts, "--html", path, code=2)
            assert "cannot write the report" in refused.stderr
            assert str(path) in refused.stderr
    assert server.requests == []


def test_keys_are_left_out_of_the_command():
    words = ["audit", "--api-key", "a", "--operator-key=b", "--html", "c", "--api-key"]
    assert without_keys(words) == ["audit", "--api-key", "KEY", "--operator-key=KEY", "--html", "c", "--api-key"]
