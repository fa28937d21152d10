"""specplug for `model.generate`: a function that takes its arguments, and one for its argument `custom_generate`.

    import specplug_transformers

    specplug_transformers.generate(model, **inputs, specplug={"num_speculative_tokens": 15})
    model.generate(**inputs, custom_generate=specplug_transformers.speculative_generate)

Greedy search and sampling behave as in `generate`, with all its logits processors and stopping criteria.  Transformers
passes none of `streamer`, `tokenizer` and `assistant_model` to a custom function, nor does it say that they were there.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList, StopStringCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specplug.settings import Settings
from specplug.settings.sources import load_settings
from specplug_transformers.arguments import check_arguments, check_lengths, check_requests, refusal, remove_padding
from specplug_transformers.engine import Engine
from specplug_transformers.intake import GenerateRequest
from specplug_transformers.params import SamplingParams
from specplug_transformers.rows import RowEnds, processors_of

_UNKNOWN_TO_CUSTOM_FUNCTIONS = ("assistant_model", "assistant_tokenizer", "synced_gpus", "custom_generate")


def generate(
    model: Any,
    inputs: Tensor | None = None,
    generation_config: Any = None,
    *,
    streamer: Any = None,
    tokenizer: Any = None,
    specplug: Settings | Mapping[str, Any] | None = None,
    specplug_requests: Sequence[Mapping[str, Any]] | None = None,
    **arguments: Any,
) -> Any:
    """Generate as `model.generate` does with the same arguments, and with drafts.

    Args:
        model, inputs, generation_config, arguments: those of `model.generate`.
        streamer: receives a single prompt and then its new tokens.
        tokenizer: needed for `stop_strings`, in arguments or generation config.
        specplug, specplug_requests: as in `speculative_generate`.

    Returns:
        What `model.generate` returns; see `speculative_generate`.

    Raises:
        EngineError: an argument would change the output and is not served.
    """
    arguments |= {} if generation_config is None else {"generation_config": generation_config}
    found = [name for name in _UNKNOWN_TO_CUSTOM_FUNCTIONS if arguments.get(name)]
    found += [name for name in ("token_healing",) if _configured(model, arguments, name)]
    found += ["cache_implementation='paged'"] if arguments.get("cache_implementation") == "paged" else []
    if found:
        expected = "greedy search or sampling of token ids"
        remedy = "Call model.generate itself"
        raise refusal("these arguments of generate are not supported", ", ".join(found), expected, remedy)
    strings = _configured(model, arguments, "stop_strings")
    if strings is not None and tokenizer is not None:
        criteria = [*(arguments.get("stopping_criteria") or ()), StopStringCriteria(tokenizer, strings)]
        arguments |= {"stopping_criteria": StoppingCriteriaList(criteria), "stop_strings": None}
    return model.generate(
        inputs,
        **{**arguments, "custom_generate": speculative_generate},
        specplug=specplug,
        specplug_requests=specplug_requests,
        specplug_streamer=streamer,
    )


def _configured(model: Any, arguments: Mapping[str, Any], name: str) -> Any:
    """Return the value of a generation setting: an argument's, this config's or else the model's."""
    configs = arguments.get("generation_config"), model.generation_config
    values = [getattr(config, name, None) for config in configs]
    return next((value for value in (arguments.get(name), *values) if value is not None), None)


def speculative_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: Any,
    specplug: Settings | Mapping[str, Any] | None = None,
    specplug_requests: Sequence[Mapping[str, Any]] | None = None,
    specplug_streamer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Generate for `input_ids` [B, L] int64, left-padded if lengths differ, as `GenerationMixin._sample` would.

    Puts the model into evaluation mode.  Calls for the same model under the same settings share an engine, which keeps
    what it has learnt, so later calls start without tests of the model and draft from earlier answers.

    Args:
        specplug: a mapping that overrides SPECPLUG_CONFIG and the defaults, or a `Settings` object in their place.
        specplug_requests: per-request fields, one mapping per row, `num_return_sequences` of them per prompt.
        specplug_streamer: receives a single prompt and then its new tokens, as `streamer` does.
        model_kwargs: arguments that `generate` prepared for the forward pass; only `attention_mask` is used, and any
            argument that would change the model's output is refused.  Processors and criteria that are not
            transformers' own see each row as all rows of a batch, and must treat rows independently.

    Returns:
        [B, L + new] int64, right-padded with the pad token; or an output object with `sequences` if the generation
        config sets `return_dict_in_generate`.

    Raises:
        EngineError: the arguments of `generate` are not supported here.
    """
    check_arguments(generation_config, model_kwargs, len(input_ids), specplug_streamer)
    check_requests(specplug_requests, len(input_ids))
    prompts = remove_padding(input_ids, model_kwargs)
    padded_length = input_ids.shape[1]
    max_tokens = (stopping_criteria.max_length or generation_config.max_length) - padded_length
    paddings = [ids[: padded_length - len(prompt)] for ids, prompt in zip(input_ids, prompts, strict=True)]
    ends = RowEnds(paddings, stopping_criteria)
    with _engine_of(model, specplug, len(prompts)) as engine:
        check_lengths(max_tokens, prompts, engine.max_length)
        eos = [token for token in ends.token_ids if token in range(engine.runner.vocab_size)]
        requests = [
            GenerateRequest(
                prompt=prompt.tolist(),
                params=_params(max_tokens, generation_config, eos),
                specplug=None if specplug_requests is None else specplug_requests[row],
                processors=processors_of(row, paddings, logits_processor) if len(logits_processor) else None,
                stop_when=ends.stop_when(row),
            )
            for row, prompt in enumerate(prompts)
        ]
        if specplug_streamer is not None:
            specplug_streamer.put(input_ids.cpu())  # which a streamer with `skip_prompt` waits for
        answers = ends.cut(_run(engine, requests, specplug_streamer), padded_length)
    sequences = _padded(input_ids, answers, generation_config)
    if generation_config.return_dict_in_generate:
        return GenerateDecoderOnlyOutput(sequences=sequences)  # type: ignore[arg-type]
    return sequences


_idle: weakref.WeakKeyDictionary[Any, tuple[Engine, weakref.finalize[[], Any]]] = weakref.WeakKeyDictionary()
"""By model, the engine that served it last, which does not refer to it any more, and what closes the engine."""


@contextmanager
def _engine_of(model: Any, chosen: Settings | Mapping[str, Any] | None, rows: int) -> Iterator[Engine]:
    """Lend the engine that served the model before, if it can do so again, or a new one."""
    settings = chosen if isinstance(chosen, Settings) else load_settings(chosen, flags_origin="generate").settings
    engine, close = _idle.pop(model, (None, None))  # nobody else's while it serves
    if engine is None or engine.settings != settings or rows > engine.max_num_seqs or not engine.runner.attach(model):
        if close is not None:
            close()
        engine = Engine(model, settings=settings, max_num_seqs=rows)
        close = weakref.finalize(model, engine.close)
    assert close is not None
    try:
        yield engine
    except BaseException:
        close()
        raise
    finally:
        engine.runner.detach()
    if model in _idle:  # another call has begun and ended meanwhile
        _idle[model][1]()
    _idle[model] = engine, close


def _params(max_tokens: int, config: Any, eos: list[int]) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=float(bool(config.do_sample)),  # the processors include the warpers
        seed=int(torch.randint(1 << 62, ())),  # follows torch.manual_seed, as `generate` does
        stop_token_ids=eos,  # no grammar is called after one of them
        ignore_eos=True,  # the stopping criteria include those of this call
    )


def _run(engine: Engine, requests: list[GenerateRequest], streamer: Any) -> list[tuple[int, ...]]:
    order = [engine.add(request) for request in requests]
    answers: dict[str, tuple[int, ...]] = {}
    for output in engine.run():
        answers[output.request_id] = output.token_ids
        if streamer is not None:
            for token in output.new_token_ids:
                streamer.put(torch.tensor([token]))
    if streamer is not None:
        streamer.end()
    return [answers[name] for name in order]


def _padded(input_ids: Tensor, answers: list[tuple[int, ...]], config: Any) -> Tensor:
    """Join prompts and answers as `generate` does, with rows that ended earlier padded by the pad token."""
    pad = 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)
    longest = max(map(len, answers))
    rows = [[*answer, *[pad] * (longest - len(answer))] for answer in answers]
    return torch.cat([input_ids, torch.tensor(rows, dtype=input_ids.dtype, device=input_ids.device)], 1)
