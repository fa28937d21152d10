"""Parameters, cache and arithmetic of a decoder-only model, counted from its Hugging Face `config.json`.

Only matrices are counted: norms and biases, under 0.1 % of a model, are left out, and so are layers that only draft
(multi-token prediction).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from specplug.errors import SettingsError, suggest
from specplug.settings.mistakes import from_pydantic, together

SUPPORTED = (
    *("llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2"),
    *("mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe", "deepseek_v2", "deepseek_v3", "kimi_k2"),
)
"""Values of `model_type` whose layers are counted as they are: gated MLPs, grouped-query or latent attention."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model; parameters are numbers of weights, not bytes.

    Attributes:
        name: the model's folder.
        dense: parameters that every step reads and every token is multiplied with, the output head included.
        embedding: parameters of an input embedding table that is not the output head too; steps only look rows up.
        moe_layers: layers with routed experts.
        experts, experts_per_token: routed experts of such a layer, and those that one token is routed to.
        expert: parameters of one routed expert.
        kv_elements: elements of the KV cache per token of context.
        kv_heads: devices that the KV cache can be split over.
        attention_flops: floating-point operations of attention per token and token of context.
        weight_bits: bits per weight; None if the configuration does not say.
    """

    name: str
    dense: int
    embedding: int
    moe_layers: int
    experts: int
    experts_per_token: int
    expert: int
    kv_elements: int
    kv_heads: int
    attention_flops: int
    weight_bits: float | None

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.dense + self.embedding + self.moe_layers * self.experts * self.expert

    @property
    def active_parameters(self) -> int:
        """Parameters that one token is multiplied with."""
        return self.dense + self.moe_layers * self.experts_per_token * self.expert

    def experts_touched(self, tokens: float) -> float:
        """Return the experts of a layer that `tokens` tokens are routed to, E (1 - (1 - k / E)^tokens).

        This assumes uniform and independent routing.  Real tokens of one text share experts, so that it is rather too
        high (Cascade, 2506.20675).
        """
        if not self.experts:
            return 0.0
        untouched: float = (1 - self.experts_per_token / self.experts) ** tokens
        return self.experts * (1 - untouched)

    def parameters_read(self, tokens: float) -> float:
        """Return the parameters that a step of so many tokens reads."""
        return self.dense + self.moe_layers * self.experts_touched(tokens) * self.expert


class _Config(BaseModel):
    """The keys of a `config.json` that count; their defaults are those of the supported models."""

    model_config = ConfigDict(extra="ignore")

    model_type: str
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    intermediate_size: PositiveInt
    vocab_size: PositiveInt
    tie_word_embeddings: bool = False
    dtype: str | None = Field(None, validation_alias=AliasChoices("dtype", "torch_dtype"))
    quantization_config: dict[str, Any] | None = None

    q_lora_rank: PositiveInt | None = None
    kv_lora_rank: PositiveInt | None = None
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0

    experts: int = Field(0, validation_alias=AliasChoices("n_routed_experts", "num_experts", "num_local_experts"))
    num_experts_per_tok: int = 0
    moe_intermediate_size: PositiveInt | None = None
    shared_expert_intermediate_size: int = 0
    n_shared_experts: int | None = None
    first_k_dense_replace: int = 0
    mlp_only_layers: tuple[int, ...] = ()
    decoder_sparse_step: PositiveInt = 1


def read_shape(path: Path) -> ModelShape:
    """Read a model's folder, or its `config.json`. A missing one, or an unsupported model, raises `SettingsError`."""
    path = path / "config.json" if path.is_dir() else path
    try:
        data = json.loads(path.read_bytes())
        config = _Config.model_validate(data)
    except ValidationError as error:
        lines = [mistake.line() for mistake in from_pydantic(error, _Config, "key")]
        raise SettingsError.build(together(lines, "key"), who=str(path)) from error
    except (OSError, ValueError) as error:
        expected = "a model's folder or config.json on this machine"
        raise SettingsError.build("no configuration", who=str(path), found=error, expected=expected) from error
    if config.model_type not in SUPPORTED:
        remedy = f"{suggest(config.model_type, SUPPORTED)}. For other models use --saturation"
        raise SettingsError.build(f"unsupported model_type {config.model_type!r}", who=str(path), remedy=remedy)
    return _shape(path.resolve().parent.name, config)


def _shape(name: str, config: _Config) -> ModelShape:
    layers, hidden, vocabulary = config.num_hidden_layers, config.hidden_size, config.vocab_size * config.hidden_size
    attention, kv_elements, kv_heads, attention_flops = _attention(config)
    moe_layers = _moe_layers(config)
    expert_size = config.moe_intermediate_size or config.intermediate_size
    shared = config.shared_expert_intermediate_size or (config.n_shared_experts or 0) * expert_size
    router_and_shared = hidden * config.experts + 3 * hidden * shared
    mlps = (layers - moe_layers) * 3 * hidden * config.intermediate_size + moe_layers * router_and_shared
    return ModelShape(
        name=name,
        dense=layers * attention + mlps + vocabulary,
        embedding=0 if config.tie_word_embeddings else vocabulary,
        moe_layers=moe_layers,
        experts=config.experts,
        experts_per_token=config.num_experts_per_tok,
        expert=3 * hidden * expert_size,
        kv_elements=layers * kv_elements,
        kv_heads=kv_heads,
        attention_flops=layers * attention_flops,
        weight_bits=_weight_bits(config),
    )


def _attention(config: _Config) -> tuple[int, int, int, int]:
    """Return a layer's parameters, KV elements, KV heads, and operations per token and token of context."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    if config.kv_lora_rank is not None:  # latent attention (DeepSeek-V2, 2405.04434), with absorbed projections
        latent, rope, nope, value = (
            config.kv_lora_rank, config.qk_rope_head_dim, config.qk_nope_head_dim, config.v_head_dim
        )  # fmt: skip
        rank, query = config.q_lora_rank, heads * (nope + rope)
        queries = hidden * query if rank is None else rank * (hidden + query)
        keys_and_values = hidden * (latent + rope) + latent * heads * (nope + value)
        parameters = queries + keys_and_values + heads * value * hidden
        return parameters, latent + rope, 1, 2 * heads * (latent + rope + latent)
    kv_heads = config.num_key_value_heads or heads
    size = config.head_dim or hidden // heads
    return 2 * hidden * (heads + kv_heads) * size, 2 * kv_heads * size, kv_heads, 4 * heads * size


def _moe_layers(config: _Config) -> int:
    """Return the number of layers with routed experts."""
    if not config.experts:
        return 0
    return sum(
        index >= config.first_k_dense_replace
        and index not in config.mlp_only_layers
        and (index + 1) % config.decoder_sparse_step == 0
        for index in range(config.num_hidden_layers)
    )


def _weight_bits(config: _Config) -> float | None:
    """Return the bits per weight of the quantisation, or else of the dtype."""
    quantisation = config.quantization_config
    if quantisation is not None:
        bits = 8 if quantisation.get("quant_method") == "fp8" else quantisation.get("bits")
        return float(bits) if isinstance(bits, int) else None
    return 32.0 if config.dtype == "float32" else 16.0
