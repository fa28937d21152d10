"""Tokenizers by name or path, as replay needs them: text in, ids out, and the id that ends an output.

Each library is imported when a tokenizer of its kind is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.errors import SettingsError, suggest
from specplug.replay.traces_io import Item

Ids = npt.NDArray[np.int32]

_BUNDLED = {
    "tekken": "tekken_240911.json",
    "spm1": "tokenizer.model.v1",
    "spm3": "mistral_instruct_tokenizer_240323.model.v3",
}
NAMES = (*_BUNDLED, "tiny")
"""Tokenizers known by name: three that mistral_common carries, and that of the shipped model."""

_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "</s>", "<|endoftext|>", "<eos>", "<|end_of_text|>")


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer.

    Attributes:
        name: as it was asked for.
        encode: text -> [n] int32, without special tokens around it.
        eos_id: what the recorded outputs end with.
        vocab_size: ids lie in [0, vocab_size).
        library: the library's own object.
    """

    name: str
    encode: Callable[[str], Ids]
    eos_id: int
    vocab_size: int
    library: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class TokenItem:
    """A recorded item as token ids; all arrays [n] int32 and read-only.

    Attributes:
        output: ends with the tokenizer's EOS; its first token comes from prefill.
    """

    id: str
    prompt: Ids
    documents: tuple[Ids, ...]
    output: Ids


def load_tokenizer(name: str) -> Tokenizer:
    """Return a tokenizer by name (see `NAMES`) or path.

    A path is a `tokenizer.json` or a folder with one, or a Tekken JSON or SentencePiece file of mistral_common's kinds.

    Raises:
        SettingsError: the name is unknown, the file cannot be read, or the library that reads it is not installed.
    """
    if name in _BUNDLED:
        return _mistral(name, _bundled(name))
    if name == "tiny":
        return _hugging_face(name, Path(__file__).parents[1] / "demo" / "models" / "tiny" / "tokenizer.json")
    path = Path(name)
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise SettingsError.build(
            "no such tokenizer",
            found=repr(name),
            expected="a name, a tokenizer.json, or a folder with one",
            remedy=suggest(name, NAMES),
        )
    if path.suffix == ".json" and "model" in _json(path):
        return _hugging_face(name, path)
    return _mistral(name, path)


def tokenize(
    items: Iterable[Item], tokenizer: Tokenizer, progress: Callable[[int], None] | None = None
) -> list[TokenItem]:
    """Return items as token ids; `progress` is called with the number of items done."""
    done: list[TokenItem] = []
    for item in items:
        documents = tuple(_frozen(tokenizer.encode(document)) for document in item.documents)
        output = _frozen(np.append(tokenizer.encode(item.output), np.int32(tokenizer.eos_id)))
        done.append(TokenItem(item.id, _frozen(tokenizer.encode(item.prompt)), documents, output))
        if progress is not None:
            progress(len(done))
    return done


def vocab_size_for(items: Sequence[TokenItem], tokenizer: Tokenizer) -> int:
    """Return the vocabulary's size, or more where the items hold ids that the tokenizer does not count."""
    largest = max((int(ids.max()) for item in items for ids in (item.prompt, item.output) if ids.size), default=0)
    return max(tokenizer.vocab_size, largest + 1)


def _frozen(ids: Ids) -> Ids:
    ids.flags.writeable = False
    return ids


def _array(ids: Sequence[int]) -> Ids:
    return np.asarray(ids, dtype=np.int32)


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
            found=f"{type(error).__name__}: {error}",
            expected="a tokenizer.json, or a file that mistral_common reads",
        ) from error
    return Tokenizer(
        name,
        lambda text: _array(found.encode(text, bos=False, eos=False)),
        int(found.eos_id),
        int(found.n_words),
        found,
    )


def _hugging_face(name: str, path: Path) -> Tokenizer:
    try:
        from tokenizers import Tokenizer as Library
    except ImportError as error:
        raise _missing(name, "tokenizers", error) from error
    try:
        found = Library.from_file(str(path))
    except Exception as error:  # the library raises bare exceptions
        raise SettingsError.build("cannot read the tokenizer", who=str(path), found=str(error)) from error
    found.no_truncation()
    return Tokenizer(
        name,
        lambda text: _array(found.encode(text, add_special_tokens=False).ids),
        _eos_id(path, found),
        int(found.get_vocab_size()),
        found,
    )


def _eos_id(path: Path, found: Any) -> int:
    """Return the id of what ends an output: as a tokenizer_config.json beside says, else a token with a usual name."""
    config = path.with_name("tokenizer_config.json")
    named = _json(config).get("eos_token") if config.is_file() else None
    if isinstance(named, dict):
        named = named.get("content")
    for token in (named,) if named else _ENDS:
        index = found.token_to_id(token)
        if index is not None:
            return int(index)
    raise SettingsError.build(
        "no end-of-sequence token",
        who=str(path),
        found=named or "none of the usual names",
        expected="'eos_token' in a tokenizer_config.json beside it, naming a token of the vocabulary",
    )
