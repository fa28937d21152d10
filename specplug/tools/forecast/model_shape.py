"""Parameters, cache and arithmetic of a decoder-only model, counted from its Hugging Face configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specplug.draft_model.facts import ModelFacts, Parameters, count_parameters, read_facts
from specplug.errors import SettingsError


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model.

    Attributes:
        name: the model's folder.
        weights: its parameters, numbers of weights and not bytes.
        kv_elements: elements of the KV cache per token of context.
        kv_heads: devices that the KV cache can be split over.
        attention_flops: floating-point operations of attention per token and token of context.
        weight_bits: bits per weight; None if the configuration does not say.
    """

    name: str
    weights: Parameters
    kv_elements: int
    kv_heads: int
    attention_flops: int
    weight_bits: float | None

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.weights.dense + self.weights.embedding + self.weights.experts * self.weights.expert

    @property
    def active_parameters(self) -> int:
        """Parameters that one token is multiplied with."""
        return self.weights.dense + self.weights.experts_per_token * self.weights.expert

    def experts_touched(self, tokens: float) -> float:
        """Return the experts of a layer that `tokens` tokens are routed to, E (1 - (1 - k / E)^tokens).

        Real tokens of one text share experts and are not routed uniformly, so it is rather high (Cascade, 2506.20675).
        """
        experts = self.weights.experts
        return experts * (1.0 - (1 - self.weights.experts_per_token / experts) ** tokens) if experts else 0.0

    def parameters_read(self, tokens: float) -> float:
        """Return the parameters that a step of so many tokens reads."""
        return self.weights.dense + self.experts_touched(tokens) * self.weights.expert


def read_shape(path: Path) -> ModelShape:
    """Read a model's folder, or its `config.json`.

    A missing one raises `SettingsError`, and a model that transformers does not build `PluginError`.
    """
    if not path.exists():
        expected = "a model's folder or config.json on this machine"
        raise SettingsError.build("no configuration", who=str(path), expected=expected)
    return count_shape(read_facts(str(path)))


def count_shape(facts: ModelFacts) -> ModelShape:
    """Count the sizes of a model; raises as `count_parameters`."""
    text = facts.text
    path = Path(facts.path).resolve()
    # Mamba has none
    layers = text.num_hidden_layers
    heads = getattr(text, "num_attention_heads", 0)
    if latent := getattr(text, "kv_lora_rank", None):  # DeepSeek-V2, 2405.04434, with absorbed projections
        elements = latent + text.qk_rope_head_dim
        kv_heads = 1
        per_context = 2 * latent + text.qk_rope_head_dim
    else:
        size = (getattr(text, "head_dim", None) or text.hidden_size // heads) if heads else 0
        kv_heads = getattr(text, "num_key_value_heads", None) or heads or 1
        elements = 2 * kv_heads * size
        per_context = 2 * size
    is_quantised = getattr(facts.config, "quantization_config", None) is not None
    return ModelShape(
        name=path.parent.name if path.name == "config.json" else path.name,
        weights=count_parameters(facts),
        kv_elements=layers * elements,
        kv_heads=kv_heads,
        attention_flops=2 * layers * heads * per_context,
        weight_bits=facts.quantised_bits if is_quantised else facts.weight_bits,
    )
