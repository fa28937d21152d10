"""SGLang is here and runs: on Linux on x86-64 these tests fail, and none is skipped, when it does not."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from tests.engines.sglang import inside


def test_sglang_answers(baseline):
    [answer] = baseline.call(inside.generate, prompts=["def main():\n"], params={"max_new_tokens": 4})
    assert len(answer["token_ids"]) == 4
    assert baseline.inside(inside.facts)["attention"] == "TorchNativeAttnBackend"


def imports_for_cpus() -> Iterator[tuple[str, str, str]]:
    """Yield (file, module, name) of all that SGLang takes from `sgl_kernel` at import under "if this is a CPU"."""
    sglang = Path(importlib.util.find_spec("sglang").origin).parent  # not imported in this process
    for path in sorted((sglang / "srt").rglob("*.py")) + sorted((sglang / "kernels").rglob("*.py")):
        text = path.read_text()
        if "sgl_kernel" not in text:
            continue
        branches = [node for node in ast.parse(text).body if isinstance(node, ast.If)]
        while branches:
            branch = branches.pop()
            branches += [node for node in branch.orelse if isinstance(node, ast.If)]
            if ast.unparse(branch.test) in ("_is_cpu", "is_cpu()", "not _is_xpu"):
                for node in branch.body:
                    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sgl_kernel":
                        yield from ((str(path.relative_to(sglang)), str(node.module), each.name) for each in node.names)


def test_the_stand_in_has_every_kernel_that_sglang_imports():
    """Kernels of models with linear attention are excepted, as the tests do not run them."""
    found = list(imports_for_cpus())
    assert len(found) >= 10
    missing = [
        (path, module, name)
        for path, module, name in found
        if module != "sgl_kernel.mamba" and not hasattr(importlib.import_module(module), name)
    ]
    assert not missing
