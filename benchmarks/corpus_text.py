"""Corpus of the sources and documentation of the installed Python packages, as documents of a store."""

from __future__ import annotations

import random
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from specplug.corpus.documents import Document
    from specplug.text.fingerprint import Fingerprint

ENDINGS = (".py", ".pyi", ".md", ".rst", ".txt", ".h", ".hpp", ".cpp", ".cu", ".json")

MOST_CHARACTERS = 400_000
"""Size limit of one file; larger files are mostly data."""

EXTERNAL = 50
"""One file in this many is held out of the corpus, as a source of text that is not in it."""


class Texts(NamedTuple):
    """The texts that were read.

    Attributes:
        documents: the documents with their re-tokenised prefixes.
        external: [n] int32, the text of the held-out files.
        tokens: number of tokens of the documents' bodies.
        seconds: time to tokenise the documents.
        tokenizer: the tokenizer's fingerprint.
    """

    documents: list[Document]
    external: npt.NDArray[np.int32]
    tokens: int
    seconds: float
    tokenizer: Fingerprint


def read(tokens: int, tokenizer: str, roots: Sequence[Path]) -> Texts:
    """Return documents of at least this many tokens in total, if available, in a reproducible order."""
    import numpy as np

    from specplug.corpus.documents import tokenized
    from specplug.text.tokenizers import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    documents, external, total, seconds = [], [], 0, 0.0
    for number, (name, text) in enumerate(files(roots)):
        if number % EXTERNAL == 0:
            external.append(loaded.encode(text))
        elif total < tokens:
            began = time.perf_counter()
            documents.append(tokenized(name, text, lambda part: loaded.encode(part).tolist()))
            seconds += time.perf_counter() - began
            total += documents[-1].token_ids.size
        else:
            break
    return Texts(documents, np.concatenate(external), total, seconds, loaded.fingerprint)


def installed() -> list[Path]:
    """Return the folders of this environment's packages and of Python's own library."""
    paths = sysconfig.get_paths()
    return [Path(paths["purelib"]), Path(paths["stdlib"])]


def files(roots: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield names and texts of files without duplicate texts."""
    found = sorted({path for root in roots for path in root.rglob("*") if path.suffix in ENDINGS})
    random.Random(0).shuffle(found)
    seen: set[str] = set()
    for path in found:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        if text.strip() and len(text) <= MOST_CHARACTERS and text not in seen:
            seen.add(text)
            yield str(path), text
