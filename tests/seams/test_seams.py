"""Seams in an engine that is imported, versions that an adapter supports, what a moved seam does, and hooks."""

from __future__ import annotations

import functools
import importlib
import json
import logging
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace

import pytest

from specplug.errors import EngineError
from specplug.seams.seam import Seam, hook, problems, table
from specplug.seams.support import MARK, UNKNOWN, InstalledEngine, Range, Support

ENGINE = """
    import functools
    from dataclasses import dataclass

    LIMIT = 3

    class Base:
        shared: int = 0
        left: str

        def __init__(self, size, *, eager=False):
            self.size = size

        def inherited(self, a, b): ...

    class Plain: ...

    @dataclass(slots=True)
    class Packed:
        name: str

    def function(a, b, *rest, c=1, **others): ...

    def wrapping(original):
        @functools.wraps(original)
        def wrapped(*args, **kwargs): ...
        return wrapped

    class Runner(Base):
        kind = "plain"

        def late(self):
            self.made_late: int = 1

        @property
        def width(self): return self.only_read

        @staticmethod
        def static(a, b): ...

        @classmethod
        def made(cls, a, b): ...

        @wrapping
        def wrapped(self, a): ...
"""
HELD = """
[v1]
engine
  LIMIT
  function(a, b, *, c, others, rest)
  Base: shared size left inherited __init__ __dict__
  Base.__init__(size, *, eager)
  Packed: name
  Runner: made_late kind width size shared inherited __dict__
  Runner.__init__
  Runner.inherited(a, b)
  Runner.static(a, b)
  Runner.made(a, b)
  Runner.wrapped(a)
"""
MOVED = [
    ("absent", ["is gone"]),
    ("Base.absent", ["is gone"]),
    ("Plain.__init__", ["is gone"]),
    ("LIMIT.absent", ["is gone"]),
    ("Runner: absent only_read kind", ["no longer has 'absent'", "no longer has 'only_read'"]),
    ("Packed: __dict__", ["no longer has '__dict__'"]),
    (
        "function(b, *, d)",
        [
            "no longer begins with (b): found (a, b, rest, c, others)",
            "no longer takes 'd': found (a, b, rest, c, others)",
        ],
    ),
    ("Runner.made(cls)", ["no longer begins with (cls): found (a, b)"]),
    ("LIMIT(a)", ["no longer begins with (a): found ()"]),
]


@pytest.fixture(autouse=True)
def engine(tmp_path, monkeypatch) -> Iterator[None]:
    """A small engine that can be imported."""
    (tmp_path / "engine.py").write_text(textwrap.dedent(ENGINE))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    yield
    sys.modules.pop("engine", None)


@pytest.mark.parametrize("seam", table(HELD), ids=str)
def test_what_is_there_is_found(seam: Seam):
    assert list(problems(seam)) == []


@pytest.mark.parametrize(("row", "expected"), MOVED, ids=[row for row, _ in MOVED])
def test_what_has_moved_is_named(row: str, expected: list[str]):
    (seam,) = table(f"[v1]\nengine:{row}")
    assert list(problems(seam)) == [f"{seam} {line}" for line in expected]


def test_a_module_that_does_not_import_is_named_with_the_reason():
    (seam,) = table("engine.absent:x")
    (line,) = problems(seam)
    assert line.startswith("engine.absent:x is gone: No module named 'engine.absent'")


def test_a_hook_of_ours_does_not_hide_what_it_wraps(monkeypatch):
    base = importlib.import_module("engine").Base
    original = base.inherited
    monkeypatch.setattr(base, "inherited", functools.wraps(original)(lambda *args, **kwargs: None))
    (seam,) = table("engine:Base.inherited(a, b)")
    assert list(problems(seam)) == []


def test_a_table_is_read():
    text = """
[v1, v2]
engine.parts
  LIMIT
  Base: shared size
      left
  Base.__init__(size, *, eager) >= 0.33
# A remark.

[front]
engine.other:function(a, b) <= 0.5.22
"""
    parts = functools.partial(Seam, module="engine.parts", where=("v1", "v2"))
    assert list(table(text)) == [
        parts(name="LIMIT"),
        parts(name="Base", holds=("shared", "size", "left")),
        parts(name="Base.__init__", takes=("size",), named=("eager",), since=(0, 33)),
        Seam(module="engine.other", name="function", where=("front",), takes=("a", "b"), until=(0, 5, 22)),
    ]
    with pytest.raises(ValueError, match="not a row"):
        table("engine.parts:LIMIT shared")


# -- versions ----------------------------------------------------------------------------------------------------------

TWO = Range(engine="Engine", oldest=(0, 30), newest=(0, 33))
THREE = Range(engine="Engine", oldest=(0, 5, 22), newest=(0, 5, 23))


@pytest.mark.parametrize(
    ("versions", "text", "parsed", "judgement"),
    [
        (TWO, "0.29.9", (0, 29), "too old"),
        (TWO, "0.30.0", (0, 30), "supported"),
        (TWO, "0.33.1rc2.dev4+g12ab", (0, 33), "supported"),
        (TWO, "0.34.0", (0, 34), "untested"),
        (TWO, UNKNOWN, None, "untested"),
        (TWO, "1", None, "untested"),
        (THREE, "0.5.21.post1", (0, 5, 21), "too old"),
        (THREE, "0.5.23", (0, 5, 23), "supported"),
        (THREE, "v0.5.23", None, "untested"),
        (THREE, "1.0.0", (1, 0, 0), "untested"),
    ],
)
def test_versions_are_read_and_judged(versions: Range, text: str, parsed, judgement: str):
    assert versions.parse(text) == parsed
    assert versions.judge(text) == judgement


OPTIONAL = {"extras": "what makes life easier"}
NEEDED, GONE, EXTRA = table("""
[front, worker]
engine:Base

[worker]
engine:absent <= 0.33

[extras]
engine:never
""")


def support(version: str, *seams: Seam) -> Support:
    return Support(TWO, seams, who="adapter", installed=lambda: version, optional=OPTIONAL)


MOVED_SEAM = (
    "adapter: Engine has moved: engine:absent is gone; found Engine {}; expected Engine 0.30 to 0.33. "
    "Install a supported version: Engine 0.30 to 0.33"
)
TOO_OLD = "this Engine is too old; found Engine 0.29.1; expected Engine 0.30"


@pytest.mark.parametrize(
    ("version", "seams", "part", "refused"),
    [
        ("0.32.0", [NEEDED, GONE], "front", None),  # a part is refused for its own seams alone
        ("0.32.0", [NEEDED, GONE], "worker", MOVED_SEAM.format("0.32.0")),
        ("0.34.0", [NEEDED, GONE], "worker", None),  # seams of other versions are not required
        ("0.32.0", [replace(GONE, since=(0, 33))], "worker", None),
        (UNKNOWN, [NEEDED, GONE], "worker", MOVED_SEAM.format(UNKNOWN)),  # it is taken for the newest
        ("0.29.1", [NEEDED], "front", TOO_OLD),  # although every seam is there
    ],
)
def test_a_part_is_refused_for_an_engine_that_is_too_old_or_has_moved(version, seams, part, refused):
    required = support(version, *seams)
    if refused is None:
        required.require(part)
        return
    with pytest.raises(EngineError) as raised:
        required.require(part)
    assert refused in str(raised.value)
    assert required.moved_seams(part) == ([] if refused is TOO_OLD else ["engine:absent is gone"])


def test_an_untested_version_is_served_with_one_warning(caplog):
    required = support("0.40.0", NEEDED)
    with caplog.at_level(logging.WARNING, logger="specplug"):
        required.require("front")
        required.require("worker")
    (record,) = caplog.records
    assert "not with 0.40.0" in record.getMessage()


def test_an_optional_part_that_has_moved_is_off_with_one_warning(caplog, capsys):
    required = support("0.32.0", NEEDED, EXTRA)
    with caplog.at_level(logging.WARNING, logger="specplug"):
        required.require("front")
        assert not required.available("extras")
        assert not required.available("extras")
    (record,) = caplog.records
    assert record.getMessage() == (
        "adapter: Engine has moved: engine:never is gone; found Engine 0.32.0; expected Engine 0.30 to 0.33. "
        "The server runs; off: what makes life easier"
    )
    required.report()
    reported = json.loads(capsys.readouterr().out.strip().removeprefix(MARK))
    assert reported == {"seams": 2, "moved": [], "off": ["engine:never is gone (off: what makes life easier)"]}


@pytest.mark.parametrize(
    ("seams", "status", "summary"),
    [
        ([NEEDED], "ok", "all 1 seams found"),
        ([NEEDED, EXTRA], "warn", "Engine has moved: engine:never is gone (off: what makes life easier)"),
        ([NEEDED, GONE], "fail", "Engine has moved: engine:absent is gone"),
    ],
    ids=["none", "optional", "needed"],
)
def test_doctor_warns_of_optional_parts_and_fails_for_others(tmp_path, seams, status, summary):
    (tmp_path / "adapter.py").write_text(
        "from specplug.seams.seam import Seam\nfrom specplug.seams.support import Range, Support\n"
        f"support = Support({TWO!r}, {seams!r}, who='', installed=lambda: '0.32', optional={OPTIONAL!r})"
    )
    rest = dict.fromkeys(("group", "target", "allowing", "empty_allows", "remedy"), "")
    checked = InstalledEngine(package="engine", versions=TWO, seams="adapter", statement="import engine", **rest)
    imports, found = checked.check_import()
    assert (imports.status, imports.summary) == ("ok", "Engine imports")
    assert (found.status, found.summary) == (status, summary)


# -- hooks -------------------------------------------------------------------------------------------------------------


def doubled(original, *args):
    return 2 * original(*args)


def increased(original, *args):
    return 1 + original(*args)


def test_a_hook_is_called_around_the_original_once_however_often_it_is_installed():
    class Owner:
        def method(self, a):
            """Return it."""
            return a

        @staticmethod
        def static(a):
            return a

    for around in (doubled, increased, doubled):
        hook(Owner, "method", around)
        hook(Owner, "static", around)
    assert (Owner().method(3), Owner.static(3), Owner().static(3)) == (7, 7, 7)
    assert Owner.method.__doc__ == "Return it."
