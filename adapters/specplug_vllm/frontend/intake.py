"""Hooks where vLLM accepts requests.  They validate specplug's fields before the engine sees a request.

There are three hooks, in the front-end process.  The HTTP hook validates before the response begins, so that an error
is a status 400 for streams too; those of `AsyncLLM` and `InputProcessor` (which `LLM` uses) validate requests that
reach them directly.  The first hook that runs leaves the wire form in ``extra_args``, which the others skip.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from specplug.requests import arguments, clients, predicted, wire
from specplug_vllm import seams
from specplug_vllm.config import is_requested, proposes, resolved, runner_of
from specplug_vllm.frontend import exporter

if TYPE_CHECKING:
    from specplug.requests.parser import FieldParser

_PARSER = "_specplug_parser"  # attribute of an InputProcessor whose server enables specplug
_LIMIT = "_specplug_most_biases"  # attribute of a SpeculativeConfig whose runner applies min_p and logit_bias to drafts


def install() -> None:
    """Install the hooks once this process builds a configuration that enables specplug; import nothing until then."""
    from vllm.config import vllm as module

    cls = module.VllmConfig
    if not hasattr(cls.__post_init__, "_specplug_intake"):
        cls.__post_init__ = _with_intake(cls.__post_init__)


def _with_intake(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def post_init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if is_requested(self):
            _open()

    post_init._specplug_intake = True  # type: ignore[attr-defined]
    return post_init


@functools.cache
def _open() -> None:
    """Patch vLLM's classes, once per process."""
    seams.require("api")
    clients.prepare()
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.input_processor import InputProcessor

    InputProcessor.__init__ = _with_parser(InputProcessor.__init__)
    InputProcessor.process_inputs = _parsing(InputProcessor.process_inputs)
    AsyncLLM.__init__ = _serving(AsyncLLM.__init__)
    AsyncLLM.add_request = _parsing_beside(AsyncLLM.add_request)
    SamplingParams._validate_spec_decode = _admitting(SamplingParams._validate_spec_decode)
    exporter.install()


@functools.cache
def _open_http() -> None:
    seams.require("http")
    from vllm.entrypoints.generate.base.serving import GenerateBaseServing

    from specplug_vllm.frontend import endpoints, tool_streams, usage

    endpoints.install()
    tool_streams.install()
    usage.install()
    GenerateBaseServing._check_model = _parsing_first(GenerateBaseServing._check_model)


def _with_parser(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        original(self, vllm_config, *args, **kwargs)
        found = resolved(vllm_config)
        if found is None:
            return
        from vllm.tokenizers import cached_tokenizer_from_config

        from specplug.requests.parser import FieldParser
        from specplug.text.request_tokenizer import RequestTokenizer
        from specplug_vllm.frontend.refusal import BusyRequest, RefusedRequest

        model = vllm_config.model_config
        tokenizer = RequestTokenizer(functools.partial(cached_tokenizer_from_config, model))
        setattr(self, _PARSER, FieldParser(found, model.get_vocab_size(), tokenizer, RefusedRequest, BusyRequest))
        if proposes(vllm_config) and runner_of(vllm_config) == "v2":
            from vllm.v1.worker.gpu.sample.logit_bias import MAX_NUM_LOGIT_BIAS_TOKENS

            setattr(vllm_config.speculative_config, _LIMIT, MAX_NUM_LOGIT_BIAS_TOKENS)

    return init


def _serving(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        parser = _parser(self)
        if parser is not None:
            _open_http()
            parser.prepare_for_serving()

    return init


def _parsing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def process_inputs(self: Any, request_id: Any, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        parser: FieldParser | None = getattr(self, _PARSER, None)
        if parser is not None and arguments.are_given(_extra_args(params)):
            params = _with_extra_args(params, parser.parsed(params.extra_args))
        return original(self, request_id, prompt, params, *args, **kwargs)

    return process_inputs


def _parsing_beside(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def add_request(self: Any, request_id: Any, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        parser = _parser(self)
        client = clients.current()
        if parser is not None and arguments.are_given(_extra_args(params)):
            copies = getattr(params, "n", None) or 1
            params = _with_extra_args(params, await parser.admitted(params.extra_args, client, copies))
        if parser is not None and client is not None and hasattr(params, "extra_args"):
            tenant = parser.tenant_of(client)
            if client.digest is not None or tenant is not None:
                params = _with_extra_args(params, wire.with_client(params.extra_args, client.digest, tenant))
        return await original(self, request_id, prompt, params, *args, **kwargs)

    return add_request


def _parsing_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the check that every generating endpoint awaits first, and parse once the check has passed."""
    from specplug_vllm.frontend.refusal import BusyRequest

    @functools.wraps(original)
    async def check_model(self: Any, request: Any) -> Any:
        refusal = await original(self, request)
        parser = _parser(self)
        if refusal is None and parser is not None:
            # The parts of a split request are validated when they reach `AsyncLLM`.
            holder, name = request, "vllm_xargs"
            if not hasattr(request, "to_sampling_params"):
                holder, name = getattr(request, "sampling_params", None), "extra_args"
            given: Any = getattr(holder, name, None)
            prediction = getattr(request, "prediction", None)  # OpenAI's field, which vLLM keeps and does not use
            if prediction is not None and holder is request:
                given = parser.with_prediction(given, prediction)
            client = clients.current()
            if client is not None:
                parser.tenant_of(client)  # refuses an invalid one
            if arguments.are_given(given):
                try:
                    setattr(holder, name, await parser.admitted(given, client, _copies(request, holder)))
                    if (of_request := predicted.current()) is not None:
                        of_request.read(getattr(holder, name))
                except BusyRequest as error:
                    return self.create_error_response(str(error), "TooManyRequestsError", HTTPStatus.TOO_MANY_REQUESTS)
        return refusal

    return check_model


def _copies(request: Any, holder: Any) -> int:
    """Return how many requests of the engine an HTTP request becomes: one for each prompt and sample."""
    prompt = getattr(request, "prompt", None)
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    return prompts * (getattr(holder, "n", None) or 1)


def _admitting(original: Callable[..., None]) -> Callable[..., None]:
    """Allow min_p and logit_bias, which vLLM refuses with speculation, if the runner applies them to every draft.

    V2 masks and biases the logits row by row, one row per draft position, with the request's own values: neither
    depends on the position, so verification draws from the distribution of plain decoding.  V1 applies neither.
    """

    @functools.wraps(original)
    def validate(self: Any, speculative_config: Any) -> None:
        most = getattr(speculative_config, _LIMIT, None)
        if most is None:
            original(self, speculative_config)
        elif self.logit_bias and len(self.logit_bias) > most:
            from specplug_vllm.frontend.refusal import RefusedRequest

            # Otherwise the worker would raise, which ends the engine.
            raise RefusedRequest(
                f"too many entries in logit_bias; found {len(self.logit_bias)}; expected at most {most}"
            )

    return validate


def _parser(owner: Any) -> FieldParser | None:
    """Return the parser of the input processor that an engine or an endpoint uses."""
    return getattr(getattr(owner, "input_processor", None), _PARSER, None)


def _extra_args(params: Any) -> Any:
    return getattr(params, "extra_args", None)  # pooling parameters hold no fields of specplug


def _with_extra_args(params: Any, extra_args: dict[str, Any]) -> Any:
    """Return a copy with other extra arguments, as the caller may reuse `params` for more requests."""
    changed = copy.copy(params)
    changed.extra_args = extra_args
    return changed
