"""TargetModel: the model that verifies drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class TargetModel:
    """The model that verifies drafts, as far as the adapter knows it; unknown attributes are None.

    Attributes:
        path: the directory or the repository id that the engine loaded it from.
        config: its Hugging Face configuration.  For a multimodal model this is the configuration of the whole model;
            `config.get_text_config()` returns that of the language model.
        tokenizer: its tokenizer, with the interface of a Hugging Face tokenizer.
    """

    path: str | None = None
    config: Any = None
    tokenizer: Any = None
