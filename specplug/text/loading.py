"""Tokenizers by name, path or model id.  Each library is imported when a tokenizer of its kind is loaded."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from specplug.errors import SettingsError, describe, first_line, suggest
from specplug.text.tokenizers import Tokenizer, wrap

_BUNDLED = {
    "tekken": "tekken_240911.json",
    "spm1": "tokenizer.model.v1",
    "spm3": "mistral_instruct_tokenizer_240323.model.v3",
}
NAMES = (*_BUNDLED, "tiny")
"""Tokenizers known by name: three that mistral_common includes, and that of the shipped model."""

_MODEL_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "</s>", "<|endoftext|>", "<eos>", "<|end_of_text|>")


def load_tokenizer(name: str) -> Tokenizer:
    """Return a tokenizer by name (see `NAMES`), path or model id.

    Args:
        name: a model's folder or its id at Hugging Face, which transformers reads as an engine does; if transformers is
            not installed, a folder with a `tokenizer.json`.  Or a file: a `tokenizer.json`, or a Tekken JSON or
            SentencePiece file that mistral_common reads.

    Raises:
        SettingsError: the name is unknown, the file cannot be read, or the library that reads it is not installed.
    """
    if name in _BUNDLED:
        return _mistral(name, _bundled(name))
    if name == "tiny":
        return _hugging_face(name, Path(__file__).parents[1] / "demo" / "models" / "tiny" / "tokenizer.json")
    path = Path(name)
    if path.exists():
        name = str(path.resolve())  # a store records the name and is used from other folders
    has_transformers = importlib.util.find_spec("transformers") is not None
    if has_transformers and (path.is_dir() or (not path.exists() and _MODEL_ID.fullmatch(name))):
        return wrap(automatic(name), name)
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise SettingsError.build(
            "no such tokenizer",
            found=repr(name),
            expected="a name, a model's folder or id, or a tokenizer.json",
            remedy=suggest(name, NAMES),
        )
    if path.suffix == ".json" and "model" in _json(path):
        return _hugging_face(name, path)
    return _mistral(name, path)


def automatic(name: str) -> Any:
    """Return transformers' tokenizer of a folder or model id.  Only this function needs transformers.

    Raises:
        SettingsError: there is none, or transformers is not installed.
    """
    try:
        return importlib.import_module("transformers").AutoTokenizer.from_pretrained(name)
    except Exception as error:  # the hub's client and the folder's files raise many kinds
        raise SettingsError.build(
            "cannot read the tokenizer",
            who=repr(name),
            found=first_line(error),
            expected=f"a model's folder or id, a tokenizer.json, or one of {', '.join(NAMES)}",
        ) from error


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError.build("cannot read the tokenizer", who=str(path), found=str(error)) from error
    return found if isinstance(found, dict) else {}


def _missing(name: str, library: str, error: ImportError) -> SettingsError:
    found = SettingsError.build(
        f"tokenizer {name!r} needs {library}",
        found=str(error),
        remedy=f"Install {library}, or choose another tokenizer",
    )
    assert isinstance(found, SettingsError)
    return found


def _bundled(name: str) -> Path:
    try:
        import mistral_common
    except ImportError as error:
        raise _missing(name, "mistral_common", error) from error
    return Path(mistral_common.__file__).parent / "data" / _BUNDLED[name]


def _mistral(name: str, path: Path) -> Tokenizer:
    """Read a file of one of mistral_common's kinds: Tekken's are JSON, all others SentencePiece's."""
    try:
        from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    except ImportError as error:
        raise _missing(name, "mistral_common", error) from error
    try:
        found: Any = Tekkenizer.from_file(path) if path.suffix == ".json" else SentencePieceTokenizer(str(path))
    except ImportError as error:
        raise _missing(name, "sentencepiece", error) from error
    except Exception as error:
        raise SettingsError.build(
            "cannot read the tokenizer",
            who=str(path),
            found=describe(error),
            expected="a tokenizer.json, or a file that mistral_common reads",
        ) from error
    return wrap(found, name)


def _hugging_face(name: str, path: Path) -> Tokenizer:
    try:
        from tokenizers import Tokenizer as Library
    except ImportError as error:
        raise _missing(name, "tokenizers", error) from error
    try:
        found = Library.from_file(str(path))
    except Exception as error:  # the library raises bare exceptions
        raise SettingsError.build("cannot read the tokenizer", who=str(path), found=str(error)) from error
    return wrap(found, name, _eos_id(path, found))


def _eos_id(path: Path, found: Any) -> int | None:
    """Return the id named in the tokenizer_config.json of the same folder, or that of a token with a common name."""
    config = path.with_name("tokenizer_config.json")
    named = _json(config).get("eos_token") if config.is_file() else None
    if isinstance(named, dict):
        named = named.get("content")
    ids = (found.token_to_id(token) for token in ((named,) if named else _END_TOKENS))
    return next((int(index) for index in ids if index is not None), None)
