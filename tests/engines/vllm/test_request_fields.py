"""The standing test of the requests that vLLM's servers take: chats, completions, responses and token ids."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.fields import Row, assert_complete
from tests.engines.server import MODEL, Server
from tests.engines.vllm.fields import CAT, LENGTH
from tests.engines.vllm.request_fields import ALL, GENERATE, NEEDED, SERVED, SERVED_CHATS, TRANSLATED
from tests.engines.vllm.test_fields import DRAFTED, Trial, difference, trial

__all__ = ["trial"]

on_v1 = pytest.mark.parametrize("kind", ["v1"], indirect=True, scope="session")


@on_v1
def test_each_field_has_a_row(trial: Trial) -> None:
    defined = {name for of in trial.control.call(fields_of).values() for name in of}
    assert_complete(ALL, defined, "the requests of vllm.entrypoints")


def fields_of(llm: Any) -> dict[str, list[str]]:
    """Return the fields by class."""
    return {name: list(_class(name).model_fields) for name in NEEDED}


def _class(name: str) -> Any:
    module, _, found = name.rpartition(".")
    return getattr(importlib.import_module(f"vllm.entrypoints.{module}"), found)


@on_v1
def test_fields_become_what_their_rows_say(trial):
    """Each kind of request that has a field translates it so, and at least one has it."""
    given = [[row.name, row.given, row.base] for row in TRANSLATED]
    found = trial.control.call(translated, rows=given)
    wrong = [
        (row.name, kind, changed)
        for row, kinds in zip(TRANSLATED, found, strict=True)
        for kind, changed in kinds.items()
        if row.becomes not in changed
    ]
    assert not wrong, wrong
    assert all(found)


def translated(llm: Any, rows: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> list[dict[str, list[str]]]:
    """Return, per row and kind of request that has its field, what of its parameters and prompt changes by it.

    Token ids come with `sampling_params`; their other fields meet those when they are served.
    """
    return [
        {
            kind: sorted(name for name, value in after.items() if value != before.get(name))
            for kind in NEEDED
            if name in _class(kind).model_fields and (kind != GENERATE or name == "sampling_params")
            for before, after in [(_parts(llm, kind, base), _parts(llm, kind, given))]
        }
        for name, given, base in rows
    ]


def _parts(llm: Any, kind: str, given: dict[str, Any]) -> dict[str, str]:
    fields = _class(kind).model_fields
    request = _class(kind)(**NEEDED[kind] | {name: value for name, value in given.items() if name in fields})
    own = request.to_sampling_params(16, {}) if hasattr(request, "to_sampling_params") else request.sampling_params
    found = {name: repr(getattr(own, name)) for name in own.__struct_fields__}
    prompts = [request.build_chat_params(None, "auto")] if hasattr(request, "build_chat_params") else []
    if hasattr(request, "build_tok_params"):
        prompts.append(request.build_tok_params(llm.llm_engine.vllm_config.model_config))
    return {**found, "prompt": repr(prompts)}


# -- on servers --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def servers(serve: Callable[..., Server]) -> tuple[Server, Server]:
    """The server without specplug, and with it."""
    plain = serve("v1", name="baseline server", installed=False, in_process=True)
    return plain, serve("v1", DRAFTED, name="fields server", in_process=True, draft_length=LENGTH)


@pytest.mark.parametrize("row", SERVED, ids=lambda row: row.name)
def test_completions_are_as_their_rows_say(row, servers):
    judged("/v1/completions", {"prompt": CAT}, row, servers)


@pytest.mark.parametrize("row", SERVED_CHATS, ids=lambda row: row.name)
def test_chats_are_as_their_rows_say(row, servers):
    judged("/v1/chat/completions", {"messages": [{"role": "user", "content": "a cat sat on a mat"}]}, row, servers)


def judged(path: str, needed: dict[str, Any], row: Row, servers: tuple[Server, Server]) -> None:
    common = {"model": MODEL, "temperature": 0, "max_tokens": 12, **needed}
    control, drafted = servers
    text = requested(control, path, {**common, "return_token_ids": True})["choices"][0]["token_ids"]
    base, expected = (requested(control, path, {**common, **given}) for given in (row.base, row.given))
    assert difference(base, expected), f"{row.name} changes nothing, so nothing is tried"
    for drafts in ([*text, *text], [token + n % 2 for n, token in enumerate(text)]):
        own = {"specplug": json.dumps({"proposer": "oracle", "references": [{"token_ids": drafts}]})}
        found = requested(drafted, path, {**common, **row.given, "vllm_xargs": own})
        differs = difference(expected, found)
        assert not differs, differs


def requested(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the response without what is each one's own; streams joined."""
    answer = server.ask(path, body)
    assert answer.code == 200, answer.body
    if not body.get("stream"):
        return shown(answer.json)
    events = [line.removeprefix("data: ") for line in answer.body.splitlines() if line.startswith("data: {")]
    parts = [json.loads(event) for event in events]
    text = "".join(choice["text"] for part in parts for choice in part["choices"])
    return {"text": text, **{name: value for name, value in shown(parts[-1]).items() if name != "choices"}}


def shown(response: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in response.items() if name not in ("id", "created", "system_fingerprint")}
