"""The compiler half of the backend: there is none, the interpreter runs every kernel."""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import BaseBackend


class InterpretedBackend(BaseBackend):
    """Satisfies Triton's search for backends."""

    @staticmethod
    def supports_target(target: Any) -> bool:
        return target.backend == "cpu"

    def hash(self) -> str:
        return "interpreted"

    def parse_options(self, options: Any) -> Any:
        return options

    def add_stages(self, stages: Any, options: Any, language: Any) -> None:
        raise RuntimeError("this backend compiles nothing: set TRITON_INTERPRET=1")

    def load_dialects(self, context: Any) -> None:
        pass

    def get_module_map(self) -> dict[str, Any]:
        return {}
