"""A tiny model that sees pictures: the demo's text model with a Pixtral encoder of random weights.

Pictures are read with Pillow alone: transformers' other image processors take torchvision, of which the tests have the
names only.
"""

from __future__ import annotations

import base64
import functools
import io
from pathlib import Path
from typing import Any

import torch

from tests.engines.launch import TINY

MARK = "[IMG]"
BREAK = "[IMG_BREAK]"
END = "[IMG_END]"
"""A picture's place in a prompt, and one part of it; the end of a row of parts; the end of the last one."""

SIDE = 32
PATCH = 8
PLACES = SIDE // PATCH * (SIDE // PATCH + 1)
"""How many tokens a picture becomes, those that end rows included."""

_LOOP = "x = 1\ny = 2\n"
PROMPTS: list[tuple[str, list[int]]] = [
    *((f"def first(a):\n    return a[0]\n\n{MARK}\ndef second(a):\n    return", [seed]) for seed in (0, 1)),
    (f"{_LOOP}{MARK}{_LOOP}{MARK}x = 1\n", [2, 3]),  # what follows "x = 1" and "y = 2" may be a picture
    (f"{MARK}{_LOOP}{_LOOP}{_LOOP}x = 1\n", [4]),
    (f"{_LOOP}{_LOOP}{MARK}", [5]),
    (f"{_LOOP}{_LOOP}x = 1\n", []),
]
"""Texts, and the seeds of their pictures."""

LOUDNESS = 4.0
"""How much larger than those of words the embeddings of pictures are, so that pictures change the text."""


def picture(seed: int) -> Any:
    """Return a picture of random colours."""
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.NEAREST)


def ids() -> list[int]:
    """Return the ids of the tokens of pictures."""
    return list(tokenizer().convert_tokens_to_ids([MARK, BREAK, END]))


def url(seed: int) -> str:
    """Return a picture as requests to servers hold it."""
    written = io.BytesIO()
    picture(seed).save(written, "PNG")
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()


@functools.cache
def tokenizer() -> Any:
    """Return the demo's tokenizer with the tokens of pictures, the last of its vocabulary."""
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(TINY)
    found.add_special_tokens({"additional_special_tokens": [MARK, BREAK, END]})
    return found


@functools.cache
def model() -> Any:
    """Return the model, in evaluation."""
    from transformers import AutoModelForCausalLM, LlavaConfig, LlavaForConditionalGeneration, PixtralVisionConfig

    text = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    words = len(tokenizer()) - 3
    text.resize_token_embeddings(len(tokenizer()), mean_resizing=False)
    with torch.no_grad():
        text.get_input_embeddings().weight[words:] = 0.0
    torch.manual_seed(7)
    found = LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=PixtralVisionConfig(
                hidden_size=64,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
                image_size=SIDE,
                patch_size=PATCH,
                hidden_act="silu",
            ),
            text_config=text.config,
            image_token_index=tokenizer().convert_tokens_to_ids(MARK),
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
            tie_word_embeddings=True,
            architectures=["LlavaForConditionalGeneration"],
        )
    ).eval()
    found.model.language_model.load_state_dict(text.model.state_dict())
    found.tie_weights()
    with torch.no_grad():  # what random weights see of all pictures is much the same: keep what differs
        sizes = torch.full((32, 2), SIDE)
        seen = torch.cat(
            list(found.model.get_image_features(torch.randn(32, 3, SIDE, SIDE), image_sizes=sizes).pooler_output)
        )
        last = found.model.multi_modal_projector.linear_2
        scale = text.get_input_embeddings().weight[:words].std()
        scale = LOUDNESS * scale / (seen - seen.mean(0)).std()
        last.weight *= scale
        last.bias.copy_(scale * (last.bias - seen.mean(0)))
    return found


@functools.cache
def answers(length: int = 40) -> list[list[int]]:
    """Return the model's own greedy answers to `PROMPTS`."""
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    reads = PixtralImageProcessorPil(size={"longest_edge": SIDE}, patch_size={"height": PATCH, "width": PATCH})
    rows = [MARK * (SIDE // PATCH) + end for end in [BREAK] * (SIDE // PATCH - 1) + [END]]
    found = []
    for text, seeds in PROMPTS:
        given = tokenizer()(text.replace(MARK, "".join(rows)), return_tensors="pt", return_token_type_ids=False)
        if seeds:
            given.update(reads([picture(seed) for seed in seeds], return_tensors="pt"))
        answer = model().generate(**given, do_sample=False, max_new_tokens=length, min_new_tokens=length)
        found.append(answer[0, given.input_ids.shape[1] :].tolist())
    return found


def save(folder: Path) -> str:
    """Save the model as published ones are, with its processor; return the folder."""
    import json

    from safetensors.torch import save_file

    weights = {name: weight for name, weight in model().state_dict().items() if name != "lm_head.weight"}
    save_file({_published(name): weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    model().config.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    names = {"processor_class": "PixtralProcessor", "image_token": MARK}
    names |= {"image_break_token": BREAK, "image_end_token": END}
    image = {
        "image_processor_type": "PixtralImageProcessor",
        "size": {"longest_edge": SIDE},
        "patch_size": {"height": PATCH, "width": PATCH},
    }
    (folder / "processor_config.json").write_text(json.dumps({**names, "patch_size": PATCH, "image_processor": image}))
    return str(folder)


def _published(name: str) -> str:
    """Return a weight's name in published checkpoints, which engines read."""
    return name.removeprefix("model.").replace("language_model.", "language_model.model.")


def rounds(truth: list[list[int]]) -> dict[str, list[dict[str, Any]]]:
    """Return by proposer the fields of requests for `PROMPTS`; drafts of `oracle` hold what stands for pictures."""
    mark = ids()[0]
    wrong = [[mark if place % 5 == 4 else id for place, id in enumerate(answer)] for answer in truth]
    return {
        "ngram": [{}] * len(truth),
        "recorder": [{"proposer": "recorder"}] * len(truth),
        "oracle": [{"proposer": "oracle", "references": [{"token_ids": answer}]} for answer in wrong],
    }
