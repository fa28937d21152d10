"""Texts of /metrics, recorded from vLLM 0.32's and SGLang's own collectors, and a server that answers with texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.tools.client.servers import LocalServer

VLLM = """\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 14.0
vllm:generation_tokens_total{engine="1",model_name="m"} 18.0
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 4.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 4.0
# HELP vllm:spec_decode_num_drafts_created Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7954640732157166e+09
# HELP vllm:spec_decode_num_draft_tokens_total Number of draft tokens.
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 11.0
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="m"} 11.0
# HELP vllm:spec_decode_num_accepted_tokens_total Number of accepted tokens.
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 6.0
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="m"} 6.0
# HELP vllm:spec_decode_num_accepted_tokens_per_pos_total Accepted tokens per draft position.
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="1"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="2"} 1.0
"""

SGLANG_TREES = """\
# HELP sglang:spec_accept_length Mean acceptance length of speculative decoding.
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"} 8.2
# HELP sglang:spec_num_steps Currently active speculative_num_steps.
# TYPE sglang:spec_num_steps gauge
sglang:spec_num_steps{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"} 2.0
# HELP sglang:spec_num_draft_tokens Currently active speculative_num_draft_tokens (decouples from steps under topk>1).
# TYPE sglang:spec_num_draft_tokens gauge
sglang:spec_num_draft_tokens{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"} 9.0
"""
"""SGLang's own NGRAM."""

SGLANG = SGLANG_TREES.replace("} 9.0", "} 3.0").replace("} 8.2", "} 2.11")
"""The same of a chain of two draft tokens."""

SGLANG_PLAIN = SGLANG.replace("} 3.0", "} 0.0").replace("} 2.0", "} 0.0").replace("} 2.11", "} 0.0")
"""SGLang's gauges without speculation."""


@contextmanager
def answering(*texts: str) -> Iterator[str]:
    """Serve the texts in turn as /metrics, the last one from then on; yield the server's address."""
    left = list(texts)
    routes = {"/metrics": lambda *_: left.pop(0) if len(left) > 1 else left[0]}
    with LocalServer(routes).running() as url:
        yield url
