"""The texts that the benchmark's draft model learns from, written by the real vLLM: the target's own probabilities."""

from __future__ import annotations

import subprocess
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from benchmarks.real_models import draft_model
from tests.engines.launch import PYTHON, ROOT, TINY
from tests.engines.vllm.launch import configuration

WRITES = """
import sys
from pathlib import Path
import torch
from benchmarks.real_models import draft_model
draft_model.ROWS, draft_model.LENGTH = 3, 20
texts = draft_model.write(Path(sys.argv[1]), [5, 6, 7], minutes=0)
torch.save([texts.ids, texts.likeliest, texts.probabilities], sys.argv[2])
"""


def test_likeliest_tokens_are_the_targets_at_their_positions(tmp_path: Path) -> None:
    command = [PYTHON, "-c", WRITES, str(TINY), str(tmp_path / "texts.pt")]
    done = subprocess.run(
        command, cwd=ROOT, env=configuration(installed=False).variables(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ids, likeliest, probabilities = torch.load(tmp_path / "texts.pt")
    assert ids.shape == (3, 20)
    assert ids[:, :3].tolist() == [[5, 6, 7]] * 3
    with torch.no_grad():
        expected = (
            AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)(ids[:, :-1]).logits[:, 2:].softmax(-1)
        )
    found = torch.zeros_like(expected).scatter(-1, likeliest, probabilities)
    kept = expected * (found > 0)
    torch.testing.assert_close(found, kept / kept.sum(-1, keepdim=True), atol=0.03, rtol=0.0)  # bfloat16
    assert likeliest.shape == (3, 17, draft_model.LIKELIEST)
    assert bool((probabilities.diff(dim=-1) <= 0).all()), "the likeliest comes first"
    among = (ids[:, 3:, None] == likeliest).any(-1).float().mean()
    assert among > 0.8, "texts are sampled from these, and from what is as likely as the last of them"
    assert len({*map(tuple, ids.tolist())}) == 3, "no two chats are the same"
