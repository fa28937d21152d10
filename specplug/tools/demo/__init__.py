"""Offline parts of `specplug demo`: a tiny model, real files, and tasks with known answers.

The three models under `models/` were trained by `examples/models/train.py` on Python's
standard library.  This package imports nothing outside the standard library.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

MODEL_NAMES = ("tiny", "tiny-draft", "tiny-draft-other")
"""The target, a smaller draft with its tokenizer, and a smaller draft with another tokenizer."""


def model_path(name: str = "tiny") -> Path:
    """Return the folder of a shipped model, ready for `from_pretrained`.

    Another name raises ValueError, and a model without weights in this installation FileNotFoundError.
    """
    if name not in MODEL_NAMES:
        close = get_close_matches(name, MODEL_NAMES, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"no shipped model {name!r}; {hint}known: {', '.join(MODEL_NAMES)}")
    path = Path(__file__).parent / "models" / name
    if not (path / "model.safetensors").is_file():
        raise FileNotFoundError(
            f"the shipped model {name!r} has no weights in {path}; "
            "reinstall specplug, or train it with examples/models/train.py"
        )
    return path
