"""The HTTP dialects of vLLM and SGLang: how a probe is sent, and what an answer says.

Completions are compared by token ids.  vLLM returns them from its OpenAI routes; SGLang from its own route `/generate`
only.  Chats go through OpenAI's route on both.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from specplug.audit.probe import Probe
from specplug.client.answers import Answer, CompletionLogprobs, Generated, Whole
from specplug.errors import EngineError


class Dialect(Protocol):
    """How one engine's server takes completions.

    Attributes:
        name: the engine.
        path: route of completions.
        schema: of its answers.
        arguments: key of a chat's body under which the engine passes on arguments that it does not know.
    """

    name: str
    path: str
    schema: type[Any]
    arguments: str

    def body(self, probe: Probe, model: str) -> dict[str, Any]:
        """Return the body of a completion's request."""

    def answer(self, found: Any) -> Answer:
        """Return what a completion's answer, of `schema`, says.

        Raises:
            EngineError: its parts do not fit together.
        """


class Vllm:
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
            "temperature": probe.temperature,
            "stop": list(probe.stop),
            "return_token_ids": True,
        }
        if probe.top_k:
            body["top_k"] = probe.top_k
        if probe.seed is not None:
            body["seed"] = probe.seed
        if probe.top_logprobs:
            body |= {"logprobs": probe.top_logprobs, "return_tokens_as_token_ids": True}
        if probe.json_schema is not None:
            named = {"name": "audit", "schema": probe.json_schema}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        if probe.specplug:
            body[self.arguments] = flat(probe)
        return body

    def answer(self, found: Whole) -> Answer:
        choice = found.choices[0]
        logprobs = choice.logprobs or CompletionLogprobs()
        own, values, tops = logprobs.tokens or [], logprobs.token_logprobs or [], logprobs.top_logprobs or []
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


class Sglang:
    """SGLang's `/generate`."""

    name = "SGLang"
    path = "/generate"
    schema = Generated
    arguments = "custom_params"

    def body(self, probe: Probe, model: str) -> dict[str, Any]:
        params: dict[str, Any] = {
            "max_new_tokens": probe.max_tokens,
            "temperature": probe.temperature,
            "stop": list(probe.stop),
        }
        if probe.top_k:
            params["top_k"] = probe.top_k
        if probe.seed is not None:
            params["sampling_seed"] = probe.seed
        if probe.json_schema is not None:
            params["json_schema"] = json.dumps(probe.json_schema)
        if probe.specplug:
            params[self.arguments] = flat(probe)
        body: dict[str, Any] = {"input_ids": list(probe.prompt), "sampling_params": params}
        if probe.top_logprobs:
            body |= {"return_logprob": True, "top_logprobs_num": probe.top_logprobs}
        return body

    def answer(self, found: Generated) -> Answer:
        about = found.meta_info
        own, top = about.output_token_logprobs or [], about.output_top_logprobs or []
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


def flat(probe: Probe) -> dict[str, Any]:
    """Return specplug's fields of a probe under the keys that both engines take."""
    return {f"specplug_{name}": value for name, value in probe.specplug.items()}


CHAT_PATH = "/v1/chat/completions"


def chat_body(probe: Probe, model: str, arguments: str) -> dict[str, Any]:
    """Return the body of a chat's request, in OpenAI's form; `arguments` is the dialect's."""
    body: dict[str, Any] = {
        "model": model,
        "messages": list(probe.messages),
        "max_tokens": probe.max_tokens,
        "temperature": probe.temperature,
        "stream": probe.stream,
    }
    if probe.tools:
        named = {"type": "function", "function": {"name": probe.tool_choice}}
        choice = probe.tool_choice if probe.tool_choice in ("auto", "required") else named
        body |= {"tools": list(probe.tools), "tool_choice": choice}
    if probe.specplug:
        body[arguments] = flat(probe)
    return body


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
