"""An audit's side over a running vLLM or SGLang server, with or without specplug."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from specplug.audit.dialects import CHAT_PATH, Dialect, Sglang, Vllm, chat_body
from specplug.audit.probe import DraftCounts, Probe
from specplug.client.answers import Answer, Mode, Tokenized, Version, Whole, put_together
from specplug.client.http import PATIENCE, Refused, ServerClient, answer_all
from specplug.errors import EngineError
from specplug.forecast.scraped import Samples, read_samples
from specplug.text.chat import messages

R = TypeVar("R")


class ServerSide:
    """A `Side` over HTTP.

    Args:
        url: the server's address, with or without "/v1".
        api_key: key for requests; None sends none.
        operator_key: key for specplug's routes; None sends `api_key`.
        raw: leave prompts as they are, where the model has a chat template.
        patience: seconds within which a request must be answered.

    Attributes:
        has_template: whether prompts are put into the model's chat template.

    Raises:
        EngineError: no vLLM or SGLang server answers.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        operator_key: str | None = None,
        raw: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        self._loop = asyncio.Runner()
        self._client = ServerClient(url, api_key=api_key, operator_key=operator_key, patience=patience)
        self._mode: str | None = None
        self._dialect, self._version = self._run(self._recognised())
        self._model = self._run(self._client.model())
        self.has_template = not raw and self._run(self._client.has_chat_template(self._model))

    def close(self) -> None:
        """Close the connection."""
        self._run(self._client.__aexit__())
        self._loop.close()

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a prompt."""
        prompt = {"messages": messages(text)} if self.has_template else {"prompt": text}
        found = self._run(self._client.ask(Tokenized, "POST", "/tokenize", {"model": self._model, **prompt}))
        return tuple(found.tokens)

    def answer(self, probes: Sequence[Probe], together: int, done: Callable[[], None]) -> list[Answer]:
        """Answer probes with `together` requests in flight."""
        return self._run(answer_all(probes, together, self._one, done))

    def draft_counts(self) -> DraftCounts | None:
        """Return the counts of specplug's status route, or of vLLM's metrics.

        Raises:
            EngineError: the server answers neither as expected.
        """
        try:
            status = self._run(self._client.status())
        except Refused:
            return _from_metrics(self._run(read_samples(self._client)))
        parts = list(status.metrics)
        accepted, rejected = (sum(getattr(part.total, name) for part in parts) for name in ("accepted", "rejected"))
        return DraftCounts(accepted, rejected, sum(part.lossy.departed for part in parts))

    def set_mode(self, mode: Mode) -> Mode:
        """Switch speculation on or off; return the mode before.

        Raises:
            EngineError: specplug's operator routes do not answer.
        """
        before = self._run(self._client.status()).mode
        self._run(self._client.set_mode(mode))
        self._mode = mode
        return before

    def describe(self) -> str:
        """Return address, engine, version and model."""
        mode = "" if self._mode is None else f", speculation switched {self._mode}"
        return f"{self._model} at {self._client.url}, {self._dialect.name} {self._version}{mode}"

    def _run(self, call: Coroutine[Any, Any, R]) -> R:
        return self._loop.run(call)

    async def _recognised(self) -> tuple[Dialect, str]:
        """Return the engine's dialect and version."""
        found = await self._client.ask_if_there(Version, "GET", "/version")
        if found is not None and found.version is not None:
            return Vllm(), found.version
        for path in ("/server_info", "/get_server_info"):
            found = await self._client.ask_if_there(Version, "GET", path)
            if found is not None:
                return Sglang(), found.version or "of unknown version"
        raise EngineError.build(
            "the server is not recognised",
            who="specplug audit",
            found=f"neither GET /version nor GET /server_info at {self._client.url}",
            expected="a vLLM or SGLang server",
        )

    async def _one(self, probe: Probe) -> Answer:
        if not probe.messages:
            dialect, body = self._dialect, self._dialect.body(probe, self._model)
            return dialect.answer(await self._client.ask(dialect.schema, "POST", dialect.path, body))
        body = chat_body(probe, self._model, self._dialect.arguments)
        if probe.stream:
            return await self._client.stream(CHAT_PATH, body)
        return put_together((await self._client.ask(Whole, "POST", CHAT_PATH, body)).choices[:1])


@contextmanager
def connect(url: str, *, mode: Mode | None = None, **given: Any) -> Iterator[ServerSide]:
    """Connect to a server, and switch speculation to `mode` meanwhile if one is given.

    Args:
        url: the server's address.
        mode: needs specplug's operator routes on the server, whose other clients it affects, too.
        given: further arguments of `ServerSide`.
    """
    side = ServerSide(url, **given)
    before = None if mode is None else side.set_mode(mode)
    try:
        yield side
    finally:
        if before is not None:
            side.set_mode(before)
        side.close()


def _from_metrics(samples: Samples) -> DraftCounts | None:
    """Return vLLM's own counts, of all engines together; None if there are none.

    vLLM counts drafted tokens, so those after a rejection count as rejected, too.
    """
    names = ("accepted_tokens", "draft_tokens")
    accepted, drafted = (samples.get((f"vllm:spec_decode_num_{name}_total", "")) for name in names)
    if accepted is None or drafted is None:
        return None
    return DraftCounts(int(sum(accepted)), int(sum(drafted) - sum(accepted)))
