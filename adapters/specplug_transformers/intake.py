"""Requests of the embedded engine, and their validation."""

from __future__ import annotations

import itertools
import operator
import secrets
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from specplug.errors import RequestError, quote
from specplug.interfaces import PluginContext
from specplug.requests.clients import isolation_key
from specplug.requests.parsing import parse_request_fields
from specplug.settings.model import Settings
from specplug.types.request import Request, digest_of
from specplug_transformers.params import Processor, SamplingParams, build_processors
from specplug_transformers.state import RequestState, TextStream


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One request.

    Attributes:
        prompt: text, or token ids.
        params: sampling parameters and stop conditions.
        specplug: per-request fields (see the settings documentation): enabled, num_speculative_tokens, proposer,
            references, prediction, documents, corpora, tenant, store, verifier, acceptance_threshold.
        request_id: a unique id; None lets the engine choose one.
        processors: Hugging Face logits processors to apply instead of those that `params` needs.  They must be
            stateless functions of (input_ids, scores), as they also see draft tokens that may be rejected.
        stop_when: called with all token ids, prompt included, after each emitted one; true ends the request.
    """

    prompt: str | Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    specplug: Mapping[str, Any] | None = None
    request_id: str | None = None
    processors: Processor | None = None
    stop_when: Callable[[Sequence[int]], bool] | None = None


@dataclass
class RequestIntake:
    """Validates requests and converts them to engine state.

    Attributes:
        context: of the server's plug-ins.
        thresholds: see `parse_request_fields`.
        settings, model: the server's.
    """

    context: PluginContext
    thresholds: Mapping[str, float] | None
    settings: Settings
    model: InitVar[Any]

    def __post_init__(self, model: Any) -> None:
        self._tokenizer: Any = self.context.target_tokenizer
        self._eos = _eos_token_ids(model)
        self._names = map("request-{}".format, itertools.count())

    def accept(self, generate_request: GenerateRequest, in_use: Container[str]) -> RequestState:
        """Validate a request and return its state; without an id it gets one that is not in use.

        Raises:
            RequestError: the prompt, a field or a parameter is invalid.
        """
        params = generate_request.params
        prompt = self._prompt(generate_request.prompt)
        for name, ids in params.named_token_ids.items():
            self._check_ids(f"sampling parameter {name!r}", ids)
        options, references, tenant = parse_request_fields(
            generate_request.specplug,
            tokenize=self._tokenize,
            vocab_size=self.context.vocab_size,
            limits=self.settings.limits,
            proposers=(self.settings.proposer, *self.settings.extra_proposers),
            verifiers=(self.settings.verifier,),
            thresholds=self.thresholds,
        )
        if params.stop and self._tokenizer is None:
            raise RequestError.build("stop strings need a tokenizer", remedy="Build the engine with one")
        ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos)
        request = Request(
            request_id=generate_request.request_id or next(name for name in self._names if name not in in_use),
            prompt_length=len(prompt),
            max_tokens=params.max_tokens,
            temperature=params.temperature,
            options=options,
            references=references,
            tenant=tenant,
            isolation_key=isolation_key(tenant),
            grammar=params.allowed_tokens is not None,
            prompt_digest=digest_of(prompt),
        )
        processors = build_processors(params, len(prompt), sorted(ends), self.context.device)
        return RequestState(
            request=request,
            params=params,
            tokens=prompt,
            end_token_ids=ends,
            room=min(params.max_tokens, self.context.max_length - len(prompt)),
            seed=secrets.randbits(63) if params.seed is None else params.seed % (1 << 63),
            processors=generate_request.processors or processors,
            stop_when=generate_request.stop_when,
            stream=None if self._tokenizer is None else TextStream(self._tokenizer, params.stop),
        )

    def _prompt(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            if self._tokenizer is None:
                raise RequestError.build("a text prompt needs a tokenizer", remedy="Send token ids, or build one in")
            prompt = list(self._tokenizer(prompt)["input_ids"])
        try:
            ids = [operator.index(token) for token in prompt]
        except TypeError:
            raise RequestError.build("malformed prompt", found=quote(prompt), expected="text or token ids") from None
        if not ids:
            raise RequestError.build("empty prompt", expected="at least one token")
        if len(ids) >= self.context.max_length:
            raise RequestError.build(
                "prompt too long",
                found=f"{len(ids)} tokens",
                expected=f"fewer than {self.context.max_length}, the longest context",
                remedy="Shorten it: at least one new token must fit after it",
            )
        self._check_ids("prompt", ids)
        return ids

    def _check_ids(self, where: str, ids: Sequence[int]) -> None:
        wrong = [token for token in ids if type(token) is not int or not 0 <= token < self.context.vocab_size]
        if wrong:
            raise RequestError.build(
                "token id outside the vocabulary",
                who=where,
                found=repr(wrong[0]),
                expected=f"0 to {self.context.vocab_size - 1}",
            )

    def _tokenize(self, text: str) -> list[int]:
        if self._tokenizer is None:
            raise RequestError.build("a reference text needs a tokenizer", remedy="Send its token ids")
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def _eos_token_ids(model: Any) -> frozenset[int]:
    """Return the end-of-sequence ids of the model's generation config, by which alone `generate` ends."""
    eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return frozenset() if eos is None else frozenset([eos] if isinstance(eos, int) else eos)
