"""LoRA adapters: every request gets its adapter's text, and what proposers remember is kept apart by adapter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig

from tests.engines.engines import Engine
from tests.engines.plain import prompts
from tests.engines.suites.served import drafts_of
from tests.engines.vllm import inside
from tests.engines.vllm.launch import TINY

PROMPTS = [list(prompt) for prompt in prompts()[:4]]
RANK = 4
ADAPTERS = 2
SETTINGS = {"proposer": "recorder", "extra_proposers": ["oracle"], "policy": "fixed"}
# One place more than adapters: on a CPU vLLM, stock too, adds the last place's adapter to requests without one.
LORA = {"enable_lora": True, "max_loras": ADAPTERS + 1, "max_lora_rank": 8}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Folders of adapters in PEFT's format that change the model's answers."""
    return [str(adapter(tmp_path_factory.mktemp("lora"), seed)) for seed in range(ADAPTERS)]


def adapter(folder: Path, seed: int) -> Path:
    config = AutoConfig.from_pretrained(TINY)
    draw = torch.Generator().manual_seed(seed)
    size = config.hidden_size
    weights = {}
    for layer in range(config.num_hidden_layers):
        for name in ("q_proj", "v_proj"):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(RANK, size, generator=draw) * size**-0.5
            weights[f"{prefix}.lora_B.weight"] = torch.randn(size, RANK, generator=draw) * 0.5
    save_file(weights, folder / "adapter_model.safetensors")
    stated = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(stated))
    return folder


def ask(llm: Any, paths: list[str], prompts: list[list[int]], params: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answer all prompts at once, the first with the first adapter, the next with the next one and then with none."""
    from vllm.lora.request import LoRARequest

    known = [*(LoRARequest(f"adapter-{i}", i + 1, path) for i, path in enumerate(paths)), None]
    chosen = [known[i % len(known)] for i in range(len(prompts))]
    outputs = llm.generate(
        [inside.prompt_of(prompt) for prompt in prompts],
        [inside.sampling(given) for given in params],
        lora_request=chosen,
        use_tqdm=False,
    )
    return [inside.described(output.outputs[0]) for output in outputs]


def recorded(llm: Any, **given: Any) -> dict[str, Any]:
    """Do as `ask`; return the answers, and the requests that the proposer `recorder` received."""
    from specplug_testkit.recorder import RECORDS

    from tests.engines.vllm import test_lora, watching

    RECORDS.clear()
    before = watching.counts(llm)["total"]["accepted"]
    answers = test_lora.ask(llm, **given)
    started = [record for record in RECORDS if record["call"] == "event" and record.get("kind") == "STARTED"]
    accepted = watching.counts(llm)["total"]["accepted"] - before
    return {"answers": answers, "requests": [record["request"] for record in started], "accepted": accepted}


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_adapters_keep_their_texts_and_are_reported_apart(kind, engine: Callable[..., Engine], adapters):
    baseline = engine(kind, name=f"baseline {kind} with adapters", installed=False, **LORA)
    speculating = engine(kind, SETTINGS, name=f"speculating {kind} with adapters", **LORA)
    same = [prompt for prompt in PROMPTS for _ in range(ADAPTERS + 1)]
    plain = [{"max_tokens": 24}] * len(same)
    truth = baseline.call(ask, paths=adapters, prompts=same, params=plain)
    texts = [[tuple(answer["token_ids"]) for answer in truth[i : i + ADAPTERS + 1]] for i in range(0, len(truth), 3)]
    assert any(len(set(of_one)) == ADAPTERS + 1 for of_one in texts), "the adapters change nothing"

    drafts = [drafts_of(answer["token_ids"]) if row % 2 else {} for row, answer in enumerate(truth)]
    params = [{"max_tokens": 24, **own} for own in drafts]
    found = speculating.call(recorded, paths=adapters, prompts=same, params=params)
    assert [a["token_ids"] for a in found["answers"]] == [t["token_ids"] for t in truth]
    assert found["accepted"] > 50
    keys = [request["isolation_key"] for request in found["requests"]]
    assert len(set(keys[: ADAPTERS + 1])) == ADAPTERS + 1
    assert keys == keys[: ADAPTERS + 1] * len(PROMPTS)
