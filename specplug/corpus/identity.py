"""The file store.json, which marks a folder as a store and names the tokenizer of all its text."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import TypeAdapter

from specplug.corpus.checks import parsed
from specplug.corpus.files import make_folder, open_file
from specplug.corpus.layout import LOCK_FILE, STORE_FILE, STORE_FORMAT, TENANTS
from specplug.corpus.locking import held
from specplug.corpus.sealed import opened, sealed
from specplug.corpus.writing import fsync_folder, os_errors_named, write_file
from specplug.errors import CorpusError
from specplug.text.fingerprint import Fingerprint

_TOKENIZER = TypeAdapter(Fingerprint)


def create_store(root: Path, tokenizer: Fingerprint, lock_seconds: float) -> None:
    """Create a store; do nothing if one with the same tokenizer exists.

    Raises:
        CorpusError: the folder has other contents, or cannot be written to.
    """
    if (root / STORE_FILE).exists():
        read_store(root, tokenizer)
        return
    with os_errors_named(root):
        root.mkdir(0o700, parents=True, exist_ok=True)
        # Another process may be creating it now, or was killed while doing so.
        ours = {STORE_FILE, LOCK_FILE, TENANTS, "store.tmp"}
        if others := sorted(path.name for path in root.iterdir() if path.name not in ours):
            raise CorpusError.build(
                "a folder with something else in it cannot become a corpus store",
                who=str(root),
                found=", ".join(others[:5]),
                expected="an empty folder, or none",
            )
        with held(root / LOCK_FILE, lock_seconds):
            if (root / STORE_FILE).exists():
                read_store(root, tokenizer)
                return
            make_folder(root / TENANTS)
            data = sealed(lambda head: {**head, "tokenizer": tokenizer._asdict()}, STORE_FORMAT)
            write_file(root / STORE_FILE, [data])
            fsync_folder(root)


def read_store(root: Path, tokenizer: Fingerprint | None) -> Fingerprint:
    """Return the tokenizer of a store.

    Args:
        root: its folder.
        tokenizer: the expected tokenizer; None: any.

    Raises:
        CorpusError: there is no store, it is torn, or it has a different version or tokenizer.
    """
    path = root / STORE_FILE
    try:
        with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
            data = file.read()
    except OSError as error:
        raise CorpusError.build(
            "no corpus store",
            who=str(root),
            found=error.strerror,
            expected=f"a folder with a {STORE_FILE}",
            remedy="`specplug corpus build` makes one",
        ) from error
    found = parsed(_TOKENIZER, opened(data, STORE_FORMAT, path).get("tokenizer"), path, STORE_FORMAT)
    if tokenizer is not None and tokenizer.digest != found.digest:
        raise CorpusError.build(
            "the corpus store is of another tokenizer",
            who=str(root),
            found=f"{found.name!r} ({found.digest})",
            expected=f"{tokenizer.name!r} ({tokenizer.digest})",
            remedy="Build a store with the target's own tokenizer",
        )
    return found
