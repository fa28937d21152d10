"""The one suite that every server engine runs, and the running engine that its tests call.

Each module of this folder has one topic, and in it a class whose methods are the topic's properties, each once.  An
engine's `test_suite.py` is its table: it has a class for every suite that the engine takes, which inherits it and says
what is the engine's own, and a comment for what it does not take.  What only one engine has is tested in its folder.

An engine gives two fixtures in its `conftest.py`:

    kind        how it runs, such as a model runner or a schedule; tests run once per kind
    start       a function: start(settings, name="...", **how) -> Served

`start` returns an engine of the pool, started at its first use and reused by all that ask for the same one.  Settings
are specplug's; None leaves specplug out, for the truth to compare with.  `how` holds arguments of the engine's own
launch, which a suite takes from attributes of the engine's class.  A class attribute `slow` names kinds that only
`make test-all` runs.

The engine's module `served` has what runs in its process: the functions `answers`, `counted`, `recorded` and `counts`.
Parameters of requests have OpenAI's and vLLM's names on every engine ("max_tokens", "stop_token_ids",
"structured_outputs", ...), and under "specplug" the fields of specplug; these functions translate.  Without any,
requests are greedy and have `MAX_TOKENS` tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.engines.engines import Engine
from tests.engines.plain import MAX_TOKENS

Params = dict[str, Any]
Given = Params | Sequence[Params] | None
Prompts = Sequence[Sequence[int]]
Answer = dict[str, Any]
"""Of one answer "token_ids", "text", "finish_reason", "stop_reason" and, if asked for, "logprobs": per token, by token
id, its own and the likeliest ones' log-probabilities; further "prompt_logprobs", and "cached" tokens of the prompt."""
Records = list[dict[str, Any]]


class Served:
    """A running engine in the words of the suites."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def generate(self, prompts: Prompts, params: Given = None, *, together: bool = False) -> list[Answer]:
        """Answer all prompts at once, with one set of parameters or one each.

        Args:
            together: let all of them begin in one prefill, with nothing of them in the prefix cache.
        """
        return self.engine.call("served.answers", **_listed(prompts, params), together=together)

    def counted(self, prompts: Prompts, params: Given = None) -> dict[str, Any]:
        """Do as `generate`, under "answers"; "total", "by_source" and "faults" are what specplug counted meanwhile."""
        return self.engine.call("served.counted", **_listed(prompts, params))

    def recorded(self, requests: Records, aborts: Mapping[str, list[Any]] | None = None) -> dict[str, Any]:
        """Run requests that come and leave as others proceed, on an engine with the proposer `recorder`.

        Args:
            requests: each with "id", "prompt", maybe "params", and maybe "after": [id, count], another request and how
                many tokens of it must be there first.
            aborts: by request id when it leaves, as "after".

        Returns:
            "outputs", by id the answer, or as much as there was of it; "records", of the recorder, in order; "wrong",
            the (id, length) of texts that proposers had and clients did not; "left", what is held of ended requests, by
            where; "counts", as `counts`, of this call.
        """
        complete = [{**one, "params": {"max_tokens": MAX_TOKENS, **one.get("params", {})}} for one in requests]
        return self.engine.call("served.recorded", requests=complete, aborts=dict(aborts or {}))

    def counts(self) -> dict[str, Any]:
        """Return what specplug has counted so far: "total", "by_source", "faults"."""
        return self.engine.call("served.counts")

    def inside(self, function: str | Callable[..., Any], /, **arguments: Any) -> Any:
        """Run a function where the engine schedules and drafts; see `Engine.inside`."""
        return self.engine.inside(function, **arguments)


def _listed(prompts: Prompts, params: Given) -> dict[str, Any]:
    each = [params or {}] * len(prompts) if params is None or isinstance(params, Mapping) else params
    return {"prompts": [list(one) for one in prompts], "params": [{"max_tokens": MAX_TOKENS, **one} for one in each]}


def wrong_texts(records: Records, finals: Mapping[str, Sequence[int]]) -> list[tuple[str, int]]:
    """Return the rows whose text was not what the client got; after its end there may be more."""
    return [
        (name, len(text))
        for record in records
        if record["call"] == "ingest" and not record["is_dummy"]
        for name, text in zip(record["request_ids"], record["texts"], strict=True)
        if any(a != b for a, b in zip(text, finals.get(name, text), strict=False))
    ]


def drafts_of(answer: Sequence[int], **fields: Any) -> Params:
    """Return parameters of a request whose drafts are `answer`, which the oracle takes for the truth."""
    return {"specplug": {"proposer": "oracle", "references": [{"token_ids": list(answer)}], **fields}}


__all__ = ["MAX_TOKENS", "Answer", "Params", "Records", "Served", "drafts_of", "wrong_texts"]
