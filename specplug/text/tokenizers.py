"""Tokenizers by name, path or model id, with one interface for three libraries; chat templates of Hugging Face's."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.errors import RequestError, SettingsError, describe, first_line, suggest
from specplug.text.fingerprint import Fingerprint, encoder, fingerprint

TokenIds = npt.NDArray[np.int32]
EncodeMany = Callable[[list[str]], Sequence[Sequence[int]]]
PROBE = "question"


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer, from `wrap` or `specplug.text.tokenizers.load_tokenizer`.

    Attributes:
        fingerprint: its identity, with its name and the size of its vocabulary.
        encode_many: texts -> their token ids, without special tokens; uses all cores where the library can.
        decode: token ids -> text.
        library: the library's own object.
        eos_id: the token that ends an output; None if the tokenizer does not name it.
    """

    fingerprint: Fingerprint
    encode_many: EncodeMany
    decode: Callable[[Sequence[int]], str]
    library: Any = None
    eos_id: int | None = None

    def encode(self, text: str) -> TokenIds:
        """Return the token ids [n] int32 of one text, without special tokens."""
        (ids,) = self.encode_many([text])
        return np.asarray(ids, dtype=np.int32)


def wrap(tokenizer: Any, name: str = "", eos_id: int | None = None) -> Tokenizer:
    """Return a loaded tokenizer as a `Tokenizer`, which must be its only user from then on.

    `tokenizer` is one that `specplug.text.fingerprint.encoder` takes; `eos_id` is by default the one that it names.
    """
    library = getattr(tokenizer, "backend_tokenizer", tokenizer)
    has_batches = hasattr(library, "encode_batch_fast")
    if has_batches:
        library.no_truncation()
        library.no_padding()
    identity = fingerprint(tokenizer, name)
    # A wrapper may normalise texts before its backend sees them; only then do the two differ.
    if has_batches and (library is tokenizer or fingerprint(library).digest == identity.digest):
        encode_many: EncodeMany = lambda texts: _batch(library, texts)  # noqa: E731
    else:
        encode_many = _threaded(encoder(tokenizer))
    ends = _eos_id(tokenizer) if eos_id is None else eos_id
    return Tokenizer(identity, encode_many, _decoder(tokenizer), tokenizer, ends)


def _eos_id(tokenizer: Any) -> int | None:
    found = getattr(tokenizer, "eos_token_id", getattr(tokenizer, "eos_id", None))
    return found if isinstance(found, int) else None


def _batch(library: Any, texts: list[str]) -> list[list[int]]:
    return [found.ids for found in library.encode_batch_fast(texts, add_special_tokens=False)]


def _threaded(encode: Callable[[str], list[int]]) -> EncodeMany:
    """Return a function for many texts that uses two threads, because such libraries hold the GIL half of the time."""

    def encode_many(texts: list[str]) -> list[list[int]]:
        if len(texts) == 1:
            return [encode(texts[0])]
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(encode, texts))

    return encode_many


def _decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    return lambda ids: str(tokenizer.decode(np.asarray(ids).tolist()))


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
    with _library_errors(name):
        return _loaded(name)


def automatic(name: str) -> Any:
    """Return transformers' tokenizer of a folder or model id.  Only this function needs transformers.

    Raises:
        SettingsError: there is none, or transformers is not installed.
    """
    with _library_errors(name):
        return importlib.import_module("transformers").AutoTokenizer.from_pretrained(name)


@contextmanager
def _library_errors(name: str) -> Iterator[None]:
    """Turn the errors of a tokenizer's library, the hub's client and files into a SettingsError."""
    try:
        yield
    except SettingsError:
        raise
    except ImportError as error:
        library = (error.name or "another library").split(".")[0]
        remedy = f"Install {library}, or choose another tokenizer"
        raise SettingsError.build(f"tokenizer {name!r} needs {library}", found=str(error), remedy=remedy) from error
    except Exception as error:
        raise SettingsError.build(
            "cannot read the tokenizer",
            who=repr(name),
            found=first_line(error),
            expected="a model's folder or id, a tokenizer.json, a file that mistral_common reads, or one of "
            + ", ".join(NAMES),
        ) from error


def _loaded(name: str) -> Tokenizer:
    if name in _BUNDLED:
        data = Path(importlib.import_module("mistral_common").__file__ or "").parent / "data"
        return _mistral(name, data / _BUNDLED[name])
    if name == "tiny":
        models = Path(__file__).parents[1] / "tools" / "demo" / "models"
        return _hugging_face(name, models / "tiny" / "tokenizer.json")
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


def _json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def _mistral(name: str, path: Path) -> Tokenizer:
    """Read a file of one of mistral_common's kinds: Tekken's are JSON, all others SentencePiece's."""
    from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    read: Any = Tekkenizer.from_file(path) if path.suffix == ".json" else SentencePieceTokenizer(str(path))
    return wrap(read, name)


def _hugging_face(name: str, path: Path) -> Tokenizer:
    from tokenizers import Tokenizer as Library

    library = Library.from_file(str(path))
    return wrap(library, name, _named_eos_id(path, library))


def _named_eos_id(path: Path, found: Any) -> int | None:
    """Return the id named in the tokenizer_config.json of the same folder, or that of a token with a common name."""
    config = path.with_name("tokenizer_config.json")
    named = _json(config).get("eos_token") if config.is_file() else None
    if isinstance(named, dict):
        named = named.get("content")
    ids = (found.token_to_id(token) for token in ((named,) if named else _END_TOKENS))
    return next((int(index) for index in ids if index is not None), None)


def has_chat_template(tokenizer: Any) -> bool:
    """Return whether the tokenizer, of Hugging Face's kind, has a chat template that marks roles."""
    return bool(getattr(tokenizer, "chat_template", None)) and marks_roles(_rendered(tokenizer, PROBE, tokenize=False))


def chat_ids(tokenizer: Any, question: str, system: str | None = None) -> list[int]:
    """Return the token ids of a chat with one question, up to where the answer begins.

    Raises:
        RequestError: the template does not take the messages; some take no system prompt.
    """
    return list(_rendered(tokenizer, question, system, tokenize=True))


def messages(question: str, system: str | None = None) -> list[dict[str, str]]:
    """Return a chat of one question in OpenAI's form."""
    message = {"role": "user", "content": question}
    return [message] if system is None else [{"role": "system", "content": system}, message]


def marks_roles(rendered: str) -> bool:
    """Return whether a template adds more than white space; otherwise the model was trained on no chats."""
    return rendered.strip() != PROBE


def _rendered(tokenizer: Any, question: str, system: str | None = None, *, tokenize: bool) -> Any:
    chat = messages(question, system)
    try:
        return tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=tokenize, return_dict=False)
    except Exception as error:  # templates are programs, and raise what they like
        raise RequestError.build(
            "the model's chat template does not take the prompt",
            who=str(getattr(tokenizer, "name_or_path", "tokenizer")),
            found=describe(error),
            remedy="Leave out --system, or send the prompt as it is with --raw",
        ) from error
