"""Runs of planted tokens through SGLang's own functions, from the scheduler's result to the detokenizer's text."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

from tests.engines.plain import ids

PIECES = ids("x = 1\ny = 2\nz = 3\n") + ids("é日<|end|>")
"""Tokens of the planted outputs; some hold a part of a character, and the last one is the end of text."""

THINK_END = PIECES[:2]
"""Tokens that end reasoning."""


def served(
    tokenizer: Any, tokens: list[int], sizes: list[int], params: dict[str, Any], **options: Any
) -> dict[str, Any]:
    """Return what a client and the response memory get of one request.

    Args:
        tokenizer: the scheduler's.
        tokens: what the model emits if nothing ends it.
        sizes: numbers of tokens that come in one step, by turns; the first token comes alone, as prefills emit it.
        params: sampling parameters.
        options: more arguments of `Req`, such as "stream".
    """
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor
    from sglang.srt.sampling.sampling_params import SamplingParams

    from specplug_sglang.scheduler.endings import visible_tokens

    own = SamplingParams(**params)
    own.normalize(tokenizer)
    ends = {tokenizer.eos_token_id}
    req = Req(
        "a",
        "",
        array("q", ids("def ")),
        own,
        vocab_size=len(tokenizer),
        eos_token_ids=ends,
        return_logprob=True,
        **options,
    )
    req.tokenizer = tokenizer
    processor = SimpleNamespace(model_config=SimpleNamespace(think_end_ids=THINK_END, self_opened_think_start_ids=None))
    client, turn, given = Client(tokenizer), 0, 0
    while not req.finished() and given < len(tokens):
        run = tokens[given : given + (sizes[turn % len(sizes)] if given else 1)]
        given, turn = given + len(run), turn + bool(given)
        req.output_ids.extend(run)
        SchedulerBatchResultProcessor._maybe_update_reasoning_tokens(processor, req, run)
        req.update_finish_state(len(run))
        assert list(req.output_ids) == tokens[:given], "what is released of the cache depends on it"
        for token in run:
            req.logprob.output_token_logprobs_val.append(-float(len(req.logprob.output_token_logprobs_val)))
            req.logprob.output_token_logprobs_idx.append(token)
            req.logprob.output_top_logprobs_val.append([])
            req.logprob.output_top_logprobs_idx.append([])
        client.receive(req)
    return {**client.answer, "visible": visible_tokens(req)}


class Client:
    """What SGLang sends of one request: its stream, through the detokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        from sglang.srt.managers.detokenizer_manager import DetokenizerManager

        self._detokenizer = DetokenizerManager.__new__(DetokenizerManager)
        self._detokenizer.__dict__.update(
            decode_status={},
            vocab_size=None,
            disable_tokenizer_batch_decode=False,
            tokenizer=tokenizer,
            is_tool_call_parser_gpt_oss=False,
            tool_close_token_ids=(),
        )
        self.answer: dict[str, Any] = {"text": "", "token_ids": [], "logprobs": [], "reason": None}

    def receive(self, req: Any) -> None:
        """Take what SGLang sends after a step, if it sends anything."""
        from sglang.srt.managers.scheduler_components.output_streamer import _GenerationStreamAccumulator

        accumulator = _GenerationStreamAccumulator(
            return_logprob=True,
            return_hidden_states=False,
            return_routed_experts=False,
            return_indexer_topk=False,
            spec_algorithm=SimpleNamespace(is_none=lambda: True),
            disaggregation_mode=None,
            default_stream_interval=1,
            default_force_stream_interval=50,
            get_cached_tokens_details=lambda req: None,
            is_request_level_customized_info_key=lambda key: False,
            current_weight_version=None,
        )
        accumulator.accept(req=req)
        payload = accumulator.to_payload(dp_rank=0, is_idle_batch=False)
        if payload is None:
            return
        (text,), answer = self._detokenizer._decode_batch_token_id_output(payload), self.answer
        answer["text"] += text
        answer["token_ids"] += payload.output_ids[0]
        answer["logprobs"] += zip(
            payload.output_token_logprobs_idx[0], payload.output_token_logprobs_val[0], strict=True
        )
        answer["reason"] = payload.finished_reasons[0]
        answer["completion_tokens"] = payload.completion_tokens[0]
        answer["reasoning_tokens"] = payload.reasoning_tokens[0]
