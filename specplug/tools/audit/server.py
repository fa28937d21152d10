"""An audit's side over a running vLLM or SGLang server, with or without specplug.

Completions are compared by token ids.  vLLM returns them from its OpenAI routes; SGLang from its own route `/generate`
only.  Chats go through OpenAI's route on both.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from specplug.errors import EngineError
from specplug.text.tokenizers import messages
from specplug.tools.audit.probe import DraftCounts, Probe
from specplug.tools.client.answers import (
    Answer,
    CompletionLogprobs,
    Generated,
    Mode,
    ServerInfo,
    Tokenized,
    Version,
    Whole,
    put_together,
)
from specplug.tools.client.figures import Samples, read_samples
from specplug.tools.client.http import Refused, ServerClient, answer_all
from specplug.tools.client.interrupt import run_interruptible

R = TypeVar("R")

CHAT_PATH = "/v1/chat/completions"
FLAGS = """
disable_overlap_schedule dtype quantization kv_cache_dtype model_path revision tokenizer_path context_length
attention_backend sampling_backend grammar_backend chat_template tool_call_parser reasoning_parser sampling_defaults
preferred_sampling_params enable_deterministic_inference chunked_prefill_size page_size tp_size
"""
"""SGLang's arguments that shape answers and that speculation leaves as they are."""

NEUTRAL = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sampling of the bare log-probabilities; servers take what is left out from the model's generation_config.json."""


class Dialect(ABC):
    """How one engine's server takes probes: by a route of completions whose answers follow a schema, and as chats.

    `arguments` is the key of a body under which the engine passes on arguments that it does not know.
    """

    name: ClassVar[str]
    path: ClassVar[str]
    schema: ClassVar[type[Any]]
    arguments: ClassVar[str]

    @abstractmethod
    def body(self, probe: Probe, model: str) -> dict[str, Any]:
        """Return the body of a completion's request."""

    @abstractmethod
    def answer(self, found: Any) -> Answer:
        """Return what a completion's answer, of `schema`, says. Parts that do not fit together raise `EngineError`."""

    def chat_body(self, probe: Probe, model: str) -> dict[str, Any]:
        """Return the body of a chat's request, in OpenAI's form."""
        body: dict[str, Any] = {
            "model": model,
            "messages": list(probe.messages),
            "max_tokens": probe.max_tokens,
            **NEUTRAL,
            "temperature": probe.temperature,
            "stream": probe.stream,
            **self.specplug(probe),
        }
        if probe.tools:
            named = {"type": "function", "function": {"name": probe.tool_choice}}
            choice = probe.tool_choice if probe.tool_choice in ("auto", "required") else named
            body |= {"tools": list(probe.tools), "tool_choice": choice}
        return body

    def sampling(self, probe: Probe, seed: str) -> dict[str, Any]:
        """Return what all engines call the same, and the seed by its name, if there is one."""
        optional = {"top_k": probe.top_k or None, seed: probe.seed}
        given = {name: value for name, value in optional.items() if value is not None}
        stated = {**NEUTRAL, "temperature": probe.temperature, "stop": list(probe.stop)}
        return {**stated, **given, **self.specplug(probe)}

    def specplug(self, probe: Probe) -> dict[str, Any]:
        """Return the entry of a probe's specplug fields, if it has any."""
        fields = {f"specplug_{name}": value for name, value in probe.specplug.items()}
        return {self.arguments: fields} if fields else {}


class Vllm(Dialect):
    """vLLM's `/v1/completions`."""

    name = "vLLM"
    path = "/v1/completions"
    schema = Whole
    arguments = "vllm_xargs"

    def body(self, probe: Probe, model: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": model,
            "prompt": list(probe.prompt),
            "max_tokens": probe.max_tokens,
            "return_token_ids": True,
            **self.sampling(probe, "seed"),
        }
        if probe.top_logprobs:
            body |= {"logprobs": probe.top_logprobs, "return_tokens_as_token_ids": True}
        if probe.json_schema is not None:
            named = {"name": "audit", "schema": probe.json_schema}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        return body

    def answer(self, found: Whole) -> Answer:
        choice = found.choices[0]
        logprobs = choice.logprobs or CompletionLogprobs()
        own = logprobs.tokens or []
        values = logprobs.token_logprobs or []
        tops = logprobs.top_logprobs or []
        _check_lengths(choice.token_ids, own, values, tops)
        return Answer(
            token_ids=tuple(choice.token_ids or ()),
            text=choice.text or "",
            finish_reason=choice.finish_reason,
            top_logprobs=tuple(
                {_id(name): logprob for name, logprob in {**(top or {}), token: value}.items()}
                for token, value, top in zip(own, values, tops, strict=True)
            ),
        )


class Sglang(Dialect):
    """SGLang's `/generate`."""

    name = "SGLang"
    path = "/generate"
    schema = Generated
    arguments = "custom_params"

    def body(self, probe: Probe, model: str) -> dict[str, Any]:
        params = {"max_new_tokens": probe.max_tokens, **self.sampling(probe, "sampling_seed")}
        if probe.json_schema is not None:
            params["json_schema"] = json.dumps(probe.json_schema)
        body: dict[str, Any] = {"input_ids": list(probe.prompt), "sampling_params": params}
        if probe.top_logprobs:
            body |= {"return_logprob": True, "top_logprobs_num": probe.top_logprobs}
        return body

    def answer(self, found: Generated) -> Answer:
        about = found.meta_info
        own = about.output_token_logprobs or []
        top = about.output_top_logprobs or []
        _check_lengths(found.output_ids, own, top)
        return Answer(
            token_ids=tuple(found.output_ids),
            text=found.text,
            finish_reason=None if about.finish_reason is None else about.finish_reason.type,
            top_logprobs=tuple(
                {token: value for value, token, _ in (*(likeliest or ()), chosen)}
                for chosen, likeliest in zip(own, top, strict=True)
            ),
        )


def _check_lengths(token_ids: list[int] | None, *columns: list[Any]) -> None:
    """Refuse an answer without token ids, or whose log-probabilities are neither absent nor one for each token."""
    lengths = [len(column) for column in columns]
    if token_ids is None or set(lengths) not in ({0}, {len(token_ids)}):
        ids = "no token ids" if token_ids is None else f"{len(token_ids)} token ids"
        raise EngineError.build(
            "the server's answer does not fit together",
            found=f"{ids}, log-probabilities of {lengths} tokens",
            expected="token ids, and none or as many log-probabilities",
        )


def _id(token: str) -> int:
    """Return the id in vLLM's name of a token, "token_id:17"."""
    number = token.rpartition(":")[2]
    if not (number.isascii() and number.isdecimal() and len(number) < 11):
        raise EngineError.build("not a token", found=repr(token[:80]), expected='a name such as "token_id:17"')
    return int(number)


class ServerSide:
    """A `Side` over HTTP, which puts prompts into the model's chat template if it `has_template`, unless `raw`.

    Without a vLLM or SGLang server that answers, it raises an `EngineError`.
    """

    def __init__(self, client: ServerClient, *, raw: bool = False) -> None:
        self._loop = asyncio.Runner()
        self._client = client
        self._mode: Mode | None = None
        self._flags: dict[str, Any] = {}
        self._dialect, self._version = self._run(self._recognised())
        self._model = self._run(client.model())
        self.has_template = not raw and self._run(client.has_chat_template(self._model))

    def close(self) -> None:
        """Close the connection."""
        self._run(self._client.__aexit__())
        self._loop.close()

    def tokenize(self, text: str) -> tuple[int, ...]:
        prompt = {"messages": messages(text)} if self.has_template else {"prompt": text}
        found = self._run(self._client.ask(Tokenized, "POST", "/tokenize", {"model": self._model, **prompt}))
        return tuple(found.tokens)

    def answer(self, probes: Sequence[Probe], together: int, done: Callable[[], None]) -> list[Answer]:
        return self._run(answer_all(probes, together, self._one, done))

    def draft_counts(self) -> DraftCounts | None:
        """Return the counts of specplug's status route, or of vLLM's metrics.

        A server that answers neither as expected raises `EngineError`.
        """
        try:
            status = self._run(self._client.status())
        except Refused:
            return _from_metrics(self._run(read_samples(self._client)))
        parts = list(status.metrics)
        accepted, rejected = (sum(getattr(part.total, name) for part in parts) for name in ("accepted", "rejected"))
        return DraftCounts(accepted, rejected, sum(part.lossy.departed for part in parts))

    def set_mode(self, mode: Mode) -> Mode:
        """Switch speculation on or off; return the mode before.  It needs specplug's operator routes."""
        before = self._run(self._client.status()).mode
        self._run(self._client.set_mode(mode))
        self._mode = mode
        return before

    def describe(self) -> str:
        """Return address, engine, version and model."""
        mode = "" if self._mode is None else f", speculation switched {self._mode}"
        return f"{self._model} at {self._client.url}, {self._dialect.name} {self._version}{mode}"

    def flags(self) -> dict[str, Any]:
        """Return the arguments that SGLang's `/server_info` shows; vLLM shows none but in its development mode."""
        return self._flags

    def _run(self, call: Coroutine[Any, Any, R]) -> R:
        return self._loop.run(run_interruptible(call))

    async def _recognised(self) -> tuple[Dialect, str]:
        found = await self._client.ask_if_there(Version, "GET", "/version")
        if found is not None and found.version is not None:
            return Vllm(), found.version
        for path in ("/server_info", "/get_server_info"):
            found = await self._client.ask_if_there(ServerInfo, "GET", path)
            if found is not None:
                shown = found.model_extra or {}
                self._flags = {name: shown[name] for name in FLAGS.split() if name in shown}
                return Sglang(), found.version or "of unknown version"
        raise EngineError.build(
            "the server is not recognised",
            who="specplug audit",
            found=f"neither GET /version nor GET /server_info at {self._client.url}",
            expected="a vLLM or SGLang server",
        )

    async def _one(self, probe: Probe) -> Answer:
        dialect = self._dialect
        model = self._model
        if not probe.messages:
            found = await self._client.ask(dialect.schema, "POST", dialect.path, dialect.body(probe, model))
            return dialect.answer(found)
        body = dialect.chat_body(probe, model)
        if probe.stream:
            return await self._client.stream(CHAT_PATH, body)
        return put_together((await self._client.ask(Whole, "POST", CHAT_PATH, body)).choices[:1])


@contextmanager
def connect(client: ServerClient, *, mode: Mode | None = None, raw: bool = False) -> Iterator[ServerSide]:
    """Connect to a server.

    With a mode, speculation is switched to it meanwhile.  That needs specplug's operator routes on the server, and
    affects its other clients, too.
    """
    side = ServerSide(client, raw=raw)
    before = None if mode is None else side.set_mode(mode)
    try:
        yield side
    finally:
        if before is not None:
            side.set_mode(before)
        side.close()


def _from_metrics(samples: Samples) -> DraftCounts | None:
    """Return vLLM's own counts, of all engines together; None if there are none.

    vLLM counts drafted tokens, so those after a rejection count as rejected, too, and accepted ones after a stop.
    """
    names = ("accepted_tokens", "draft_tokens")
    accepted, drafted = (samples.get((f"vllm:spec_decode_num_{name}_total", "")) for name in names)
    if accepted is None or drafted is None:
        return None
    return DraftCounts(int(sum(accepted)), int(sum(drafted) - sum(accepted)))
