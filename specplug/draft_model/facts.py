"""Facts: what a model's configuration says about it, without its weights."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch

from specplug.draft_model.model import DraftModel, attention_windows, errors_of_libraries
from specplug.errors import PluginError

_BITS = {"fp8": 8.0, "fbgemm_fp8": 8.0, "mxfp4": 4.0, "load_in_4bit": 4.0, "load_in_8bit": 8.0}
_LIKE = {"kimi_k2": "deepseek_v3"}  # of the same layers, which transformers does not know by this name
_NUM_EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts")


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of weights.

    Attributes:
        dense: those that every token is multiplied with, the output head included.
        embedding: those of an input embedding that is not the output head too; a step looks rows up only.
        experts, experts_per_token: routed experts of a layer, and those that one token is routed to; 0 for a dense
            model.
        expert: those of one routed expert of every layer together.
    """

    dense: int
    embedding: int
    experts: int = 0
    experts_per_token: int = 0
    expert: int = 0


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's configuration.  `path` is a folder, or a model id at Hugging Face."""

    path: str
    config: Any

    @property
    def text(self) -> Any:
        """The configuration of its text model."""
        return self.config.get_text_config()

    @property
    def kind(self) -> str:
        """Its architecture, by Hugging Face's name."""
        return str(self.config.model_type)

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        return int(self.text.vocab_size)

    @property
    def max_length(self) -> int | None:
        """The maximum number of tokens of a text; None if the configuration does not say."""
        found = getattr(self.text, "max_position_embeddings", None)
        return found if isinstance(found, int) else None

    @property
    def dtype(self) -> torch.dtype:
        """The checkpoint's; bfloat16 if the configuration does not say."""
        name = str(self.config.dtype or self.text.dtype or torch.bfloat16).removeprefix("torch.")
        found = getattr(torch, name, None)
        return found if isinstance(found, torch.dtype) else torch.bfloat16

    @property
    def quantised_bits(self) -> float | None:
        """Bits of a quantised weight; None if the weights have the dtype, or are quantised in a way not known here."""
        quantisation = getattr(self.config, "quantization_config", None)
        settings = quantisation if isinstance(quantisation, dict) else getattr(quantisation, "__dict__", {})
        found: list[Any] = [
            bits for key, bits in _BITS.items() if settings.get("quant_method") == key or settings.get(key)
        ]
        groups = (settings.get("config_groups") or {}).values()
        found += [(group.get("weights") or {}).get("num_bits") for group in groups if isinstance(group, dict)]
        found.append(settings.get("bits"))
        return next((float(bits) for bits in found if bits), None)

    @property
    def weight_bits(self) -> float:
        """Bits of a weight as the checkpoint has it."""
        return self.quantised_bits or 8.0 * self.dtype.itemsize


def read_facts(path: str) -> ModelFacts:
    """Read a model's configuration.

    Raises:
        PluginError: there is none, or transformers does not know such a model.
    """
    with errors_of_libraries(path, "cannot read the model's configuration"):
        from transformers import AutoConfig, PretrainedConfig

        keys, _ = PretrainedConfig.get_config_dict(path)
        if kind := _LIKE.get(keys.pop("model_type", "")):
            return ModelFacts(path, AutoConfig.for_model(kind, **keys))
        return ModelFacts(path, AutoConfig.from_pretrained(path))


def count_parameters(facts: ModelFacts) -> Parameters:
    """Count a model's parameters.

    Raises:
        PluginError: it is no causal language model, or an encoder-decoder.
    """
    if facts.config.is_encoder_decoder:
        raise PluginError.build(
            "no causal language model",
            who=facts.path,
            found=f"an encoder-decoder, {facts.kind}",
            expected="a model of a decoder only",
            remedy="Choose another model",
        )
    model = _empty(facts)
    head = model.get_output_embeddings()
    embedding = model.get_input_embeddings()
    is_untied = head is not None and head.weight is not embedding.weight
    num_embedding = embedding.weight.numel() if is_untied else 0
    experts = next((number for name in _NUM_EXPERTS if (number := getattr(facts.text, name, None))), 0)
    per_token = getattr(facts.text, "num_experts_per_tok", None) or 0
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    routed = sum(size for name, size in sizes.items() if ".experts." in name) if experts and per_token else 0
    dense = sum(sizes.values()) - num_embedding - routed
    if not routed:
        return Parameters(dense, num_embedding)
    return Parameters(dense, num_embedding, experts, per_token, routed // experts)


def cache_elements(facts: ModelFacts) -> int | None:
    """Return the elements of a draft model's keys and values for one token, from a forward pass without any data.

    None if the model computes nothing without data.

    Raises:
        PluginError: the model cannot draft: a layer keeps a state instead of keys and values, or
            `specplug.draft_model.model.DraftModel` cannot load such a model.
    """
    attention_windows(facts.path, facts.text)
    module = _empty(facts, attn_implementation="sdpa")
    model = DraftModel(facts.path, max_texts=1, max_length=1, device=torch.device("meta"), module=module)
    try:
        model.warm_up()
    except PluginError:
        raise
    except Exception:  # operations that read data raise many kinds
        return None
    return model.cache_elements


def _empty(facts: ModelFacts, **options: Any) -> Any:
    """Return the model without memory for its weights."""
    with errors_of_libraries(facts.path, "no causal language model that transformers builds"):
        from transformers import AutoModelForCausalLM

        build: Any = AutoModelForCausalLM.from_config
        with torch.device("meta"):
            return build(deepcopy(facts.config), dtype=torch.bfloat16, **options)  # which writes the dtype to it
