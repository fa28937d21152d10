"""Comparison of seams with an engine, imported or as sources, and the versions that an adapter supports."""

from __future__ import annotations

import argparse
import ast
import dis
import functools
import importlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specplug.errors import EngineError
from specplug.seams.hook import hook
from specplug.seams.installed import InstalledEngine
from specplug.seams.probe import _method_codes, _stored, imported, problems
from specplug.seams.seam import Seam, table
from specplug.seams.seam import seam as a_seam
from specplug.seams.sources import Sources, moved_in
from specplug.seams.support import UNKNOWN, Range, Support
from tests.seams.tools import Adapter, duplicates

ENGINE = {
    "__init__.py": "from .parts import *\n",
    "parts.py": """
        import functools
        from dataclasses import dataclass

        LIMIT = 3
        SIZES = {}
        SIZES[len("x")] = 2

        class Base:
            shared: int = 0

            def __init__(self, size, *, eager=False):
                self.size = size
                self.left, self.right = 1, 2

            def inherited(self, a, b): ...

        class Plain: ...

        class Remade:
            kept: int = 0

            def method(self, a): ...

        Remade.kept = 1
        Remade = type("Remade", (Remade,), {"__slots__": ()})

        @dataclass
        class Row:
            name: str
            length: int = 0

        @dataclass(slots=True)
        class Packed:
            name: str

        def function(a, b, *rest, c=1, **others): ...
    """,
    "runner.py": """
        import functools

        from engine.parts import Base, function as renamed

        if LIMIT := 2:
            def conditional(x): ...
        else:
            def conditional(y): ...

        try:
            import nothing
        except ImportError:
            nothing = None

        def wrapping(original):
            @functools.wraps(original)
            def wrapped(*args, **kwargs): ...
            return wrapped

        class Runner(Base):
            kind = "plain"

            def __init__(self):
                super().__init__(1)
                self._draft = None

            def late(self):
                self.made_late: int = 1
                other = self
                print(self.only_read)

            @property
            def width(self): return 1

            @staticmethod
            def static(a, b): ...

            @classmethod
            def made(cls, a, b): ...

            @wrapping
            def wrapped(self, a): ...
    """,
}

HOLDS = [
    a_seam("engine:function", "v1", takes="a b", named="c others rest"),
    a_seam("engine.runner:Runner.__init__", "v1"),
    a_seam("engine:Base", "v1", holds="shared size left right inherited __init__"),
    a_seam("engine.parts", "v1", holds="LIMIT Base function Row"),
    a_seam("engine.parts:Row", "v1", holds="name length __dict__"),
    a_seam("engine.parts:Packed", "v1", holds="name"),
    a_seam("engine.parts:Base.__init__", "v1", takes="size", named="eager"),
    a_seam("engine.parts:Remade", "v1", holds="kept method"),
    a_seam("engine.parts:Remade.method", "v1", takes="a"),
    a_seam("engine.runner:renamed", "v1", takes="a b"),
    a_seam("engine.runner", "v1", holds="conditional nothing renamed Runner"),
    a_seam("engine.runner:Runner", "v1", holds="_draft made_late kind width size left shared inherited __dict__"),
    a_seam("engine.runner:Runner.inherited", "v1", takes="a b"),
    a_seam("engine.runner:Runner.static", "v1", takes="a b"),
    a_seam("engine.runner:Runner.made", "v1", takes="a b"),
    a_seam("engine.runner:Runner.wrapped", "v1", takes="a"),
]
MOVED = [
    (a_seam("engine:absent", "v1"), ["engine:absent is gone"]),
    (a_seam("engine.absent:x", "v1"), ["engine.absent:x is gone"]),
    (a_seam("engine:Base.absent", "v1"), ["engine:Base.absent is gone"]),
    (a_seam("engine.parts:Plain.__init__", "v1"), ["engine.parts:Plain.__init__ is gone"]),
    (a_seam("engine:LIMIT.absent", "v1"), ["engine:LIMIT.absent is gone"]),
    (a_seam("engine.parts", "v1", holds="len"), ["engine.parts no longer has 'len'"]),
    (a_seam("engine:Remade", "v1", holds="absent"), ["engine:Remade no longer has 'absent'"]),
    (a_seam("engine.runner:Runner", "v1", holds="only_read kind"), ["engine.runner:Runner no longer has 'only_read'"]),
    (a_seam("engine.parts", "v1", holds="absent"), ["engine.parts no longer has 'absent'"]),
    (a_seam("engine.parts:Packed", "v1", holds="__dict__"), ["engine.parts:Packed no longer has '__dict__'"]),
    (
        a_seam("engine:function", "v1", takes="b", named="d"),
        [
            "engine:function no longer begins with (b): found (a, b, rest, c, others)",
            "engine:function no longer takes 'd': found (a, b, rest, c, others)",
        ],
    ),
    (
        a_seam("engine.runner:Runner.made", "v1", takes="cls"),
        ["engine.runner:Runner.made no longer begins with (cls): found (a, b)"],
    ),
    (a_seam("engine:LIMIT", "v1", takes="a"), ["engine:LIMIT is no longer a function"]),
]


@pytest.fixture
def engine(tmp_path, monkeypatch) -> Iterator[Path]:
    """A small engine's sources, that can also be imported."""
    folder = tmp_path / "engine"
    folder.mkdir()
    for name, text in ENGINE.items():
        indented = text.startswith("\n        ")
        lines = (line[8:] if indented else line for line in text.splitlines())
        (folder / name).write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "engine"]:
        del sys.modules[name]


@pytest.mark.parametrize("seam", HOLDS, ids=str)
def test_both_probes_find_what_is_there(engine, seam: Seam):
    assert list(problems(seam, Sources(engine).find)) == []
    assert list(problems(seam, imported)) == []


@pytest.mark.parametrize(("seam", "expected"), MOVED, ids=lambda value: str(value) if isinstance(value, Seam) else "")
def test_both_probes_say_the_same_of_what_is_not(engine, seam: Seam, expected: list[str]):
    assert list(problems(seam, Sources(engine).find)) == expected
    assert list(problems(seam, imported)) == expected


def test_a_hook_of_ours_does_not_hide_what_it_wraps(engine, monkeypatch):
    parts = importlib.import_module("engine.parts")
    original = parts.Base.inherited
    monkeypatch.setattr(parts.Base, "inherited", functools.wraps(original)(lambda *args, **kwargs: None))
    assert list(problems(a_seam("engine.parts:Base.inherited", "v1", takes="a b"), imported)) == []


@pytest.mark.parametrize("cls", [argparse.ArgumentParser, logging.Logger, dis.Bytecode, ast.NodeVisitor, Path])
def test_assigned_attributes_are_those_that_dis_finds(cls: type):
    codes = _method_codes(cls)
    assert codes
    for code in codes:
        assert _stored(code) == {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}


def test_attributes_with_large_numbers_are_found():
    names: dict = {}
    exec("def many(self):\n" + "".join(f"    self.a{n} = {n}\n" for n in range(700)), names)
    assert _stored(names["many"].__code__) == {f"a{n}" for n in range(700)}


def test_seams_that_a_version_does_not_have_are_left_out(engine):
    gone = a_seam("engine:absent", "v1")
    assert moved_in(engine, (0, 31), [gone, replace(gone, since=(0, 32)), replace(gone, until=(0, 30))]) == [
        "engine:absent is gone"
    ]


TABLE = """
[v1, v2]
engine.parts: LIMIT
  Base: shared size
      left
  Base.__init__(size, *, eager) >= 0.33
# A remark.
engine.runner
  conditional

[front]
engine.other:function(a, b) <= 0.5.22
engine.empty:
"""


def test_a_table_is_read():
    assert list(table(TABLE)) == [
        a_seam("engine.parts", "v1", "v2", holds="LIMIT"),
        a_seam("engine.parts:Base", "v1", "v2", holds="shared size left"),
        a_seam("engine.parts:Base.__init__", "v1", "v2", takes="size", named="eager", since=(0, 33)),
        a_seam("engine.runner:conditional", "v1", "v2"),
        a_seam("engine.other:function", "front", takes="a b", until=(0, 5, 22)),
        a_seam("engine.empty", "front"),
    ]
    with pytest.raises(ValueError, match="not a row"):
        table("engine.parts LIMIT")


# -- versions ----------------------------------------------------------------------------------------------------------

TWO = Range(engine="Engine", oldest=(0, 30), newest=(0, 33))
THREE = Range(engine="Engine", oldest=(0, 5, 22), newest=(0, 5, 23))


@pytest.mark.parametrize(
    ("versions", "text", "expected"),
    [
        (TWO, "0.32.0", (0, 32)),
        (TWO, "0.33.1rc2.dev4+g12ab", (0, 33)),
        (TWO, "dev", None),
        (TWO, "1", None),
        (THREE, "0.5.23", (0, 5, 23)),
        (THREE, "0.5.12.post1", (0, 5, 12)),
        (THREE, "v0.5.23", None),
    ],
)
def test_versions_are_read(versions: Range, text: str, expected):
    assert versions.parse(text) == expected
    assert versions.assumed(text) == (expected or versions.newest)


@pytest.mark.parametrize(
    ("versions", "text", "judgement"),
    [
        (TWO, "0.29.9", "too old"),
        (TWO, "0.30.0", "supported"),
        (TWO, "0.33.7", "supported"),
        (TWO, "0.34.0", "untested"),
        (TWO, UNKNOWN, "untested"),
        (THREE, "0.5.21.post1", "too old"),
        (THREE, "1.0.0", "untested"),
    ],
)
def test_versions_are_judged(versions: Range, text: str, judgement: str):
    assert versions.judge(text) == judgement


def support(version: str, *seams: Seam) -> Support:
    return Support(TWO, seams, who="adapter", installed=lambda: version)


HELD, GONE = a_seam("engine:Base", "front", "worker"), a_seam("engine:absent", "worker", until=(0, 33))


def test_a_place_is_refused_for_its_own_seams_alone(engine):
    requested = support("0.32.0", HELD, GONE)
    requested.require("front")
    with pytest.raises(EngineError) as raised:
        requested.require("worker")
    assert str(raised.value) == (
        "adapter: Engine has moved: engine:absent is gone; found Engine 0.32.0; expected Engine 0.30 to 0.33. "
        "Install a supported version: Engine 0.30 to 0.33"
    )
    assert requested.moved("worker") == ["engine:absent is gone"]


def test_seams_of_other_versions_are_not_requested_for(engine):
    support("0.34.0", HELD, GONE).require("worker")


def test_a_version_that_is_not_known_is_taken_for_the_newest(engine):
    with pytest.raises(EngineError, match="engine:absent is gone; found Engine dev"):
        support(UNKNOWN, HELD, GONE).require("worker")


def test_a_version_that_is_too_old_is_refused_even_if_every_seam_holds(engine):
    with pytest.raises(EngineError, match=r"this Engine is too old; found Engine 0\.29\.1; expected Engine 0\.30"):
        support("0.29.1", HELD).require("front")


def test_an_untested_version_is_served_with_one_warning(engine, caplog):
    requested = support("0.40.0", HELD)
    with caplog.at_level(logging.WARNING, logger="specplug"):
        requested.require("front")
        requested.require("worker")
    (record,) = caplog.records
    assert "not with 0.40.0" in record.getMessage()


OPTIONAL = {"extras": "what makes life easier", "worker": "the worker"}
EXTRA = a_seam("engine:never", "extras")


def test_an_optional_part_that_has_moved_is_off_with_one_warning(engine, caplog):
    requested = Support(TWO, [HELD, EXTRA], who="adapter", installed=lambda: "0.32.0", optional=OPTIONAL)
    with caplog.at_level(logging.WARNING, logger="specplug"):
        requested.require("front")
        assert requested.available("worker")
        assert not requested.available("extras")
        assert not requested.available("extras")
    (record,) = caplog.records
    assert record.getMessage() == (
        "adapter: Engine has moved: engine:never is gone; found Engine 0.32.0; expected Engine 0.30 to 0.33. "
        "The server runs; off: what makes life easier"
    )


@pytest.mark.parametrize(
    ("seams", "status", "summary"),
    [
        ([HELD], "ok", "all 1 seams found"),
        ([HELD, EXTRA], "warn", "Engine 0.32.0 has moved: engine:never is gone (off: what makes life easier)"),
        ([HELD, EXTRA, replace(EXTRA, where=("extras", "front"))], "fail", "engine:never is gone"),
    ],
    ids=["none", "optional", "needed"],
)
def test_doctor_warns_of_optional_parts_and_fails_for_others(engine, seams, status, summary):
    keys = ("package", "group", "target", "allowing", "empty_allows", "statement", "remedy")
    given = dict.fromkeys(keys, "") | {"package": "engine", "versions": TWO, "seams": seams, "optional": OPTIONAL}
    found = InstalledEngine(**given).check_seams("0.32.0")
    assert found.status == status
    assert summary in found.summary


def test_each_place_is_looked_at_once(engine):
    looked: list[str] = []
    requested = Support(TWO, [HELD], who="adapter", installed=lambda: looked.append("") or "0.33.0")
    requested.require("front")
    count = len(looked)
    requested.require("front")
    assert len(looked) == count
    requested.require("worker")
    assert len(looked) > count


# -- what an adapter uses of its engine -------------------------------------------------------------------------------

USES = """
import functools

from engine import runner as machine
from engine.parts import Base, Row
from specplug.errors import EngineError

WHERE = "engine.runner.Runner"


class Ours(Base):
    def inherited(self, a, b):
        return super().inherited(a, b) + self._made_here

    def __init__(self):
        self._made_here = functools.reduce


class Wrong(EngineError):
    def told(self):
        return super().with_traceback(None)


def hook(runner, register):
    machine.conditional(runner.private)
    getattr(runner, "concealed")
    for name in ("late", "static"):
        register(f"{WHERE}.{name}")
    hooks = {"made": 1, "wrapped": 2}
    for key, _ in hooks.items():
        register(f"{WHERE}.{key}")
"""
LISTED = [
    a_seam("engine.runner", "worker", holds="conditional"),
    a_seam("engine.parts:Base.inherited", "worker"),
    a_seam("engine.parts:Row", "worker", holds="private concealed"),
    a_seam("engine.runner:Runner.late", "worker"),
    a_seam("engine.runner:Runner", "worker", holds="made static"),
    a_seam("engine.runner:Runner.wrapped", "worker"),
]


@pytest.mark.parametrize(
    ("dropped", "lacking"),
    [
        ((), {}),
        ((0,), {"names": ["engine.runner:.conditional"], "attributes": ["conditional"]}),
        ((1,), {"imports": ["engine.parts:Base"], "supers": ["inherited"]}),
        ((2,), {"imports": ["engine.parts:Row"], "attributes": ["concealed", "private"]}),
        ((3,), {"paths": ["engine.runner.Runner.late"]}),
        ((4,), {"paths": ["engine.runner.Runner.made", "engine.runner.Runner.static"]}),
        ((5,), {"paths": ["engine.runner.Runner.wrapped"]}),
    ],
)
def test_what_an_adapter_uses_and_its_table_lacks_is_named(tmp_path, dropped, lacking):
    (tmp_path / "adapter.py").write_text(USES)
    seams = [seam for number, seam in enumerate(LISTED) if number not in dropped]
    adapter = Adapter(engine="engine", folder=tmp_path, seams=seams)
    for kind in ("imports", "names", "supers", "paths", "attributes"):
        found = [line.split(": ", 1)[1] for line in getattr(adapter, f"{kind}_lacking")()]
        assert sorted(found) == lacking.get(kind, []), kind


def test_a_row_that_says_what_another_one_says_is_named():
    assert duplicates(LISTED) == []
    assert duplicates([*LISTED, a_seam("engine.parts:Row", "worker", holds="private")])
    assert duplicates([a_seam("engine.parts:Row")])


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
