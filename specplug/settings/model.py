"""Settings of one server, a frozen object with a description for every field, and those of lossy verifiers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from specplug.plugins.specs import ENGINE_DRAFTER, HYBRID, JOINS_POLICIES

MAX_SPECULATIVE_TOKENS = 256
"""The longest draft that a setting or a request may allow."""

DEFAULT_SPECULATIVE_TOKENS = 15
"""On the shipped traces longer drafts gain only on edits, and shorter ones lose on every task (docs/policies.md).

2^n - 1, so that 1 + length is a power of two and every batch size finds a captured graph.
"""


ENGINE_DRAFTER_POLICY = "adaptive+batch"
"""The default policy for the engine's own drafter, whose drafts have no confidences that a trim half could use."""


def expanded_path(text: str) -> str:
    """Return a path with the home folder in place of `~`; raises ValueError if no file can have it."""
    path = os.path.expanduser(text)
    if path.startswith("~"):
        raise ValueError("a path in the home folder of a user that exists")
    if "\0" in path:
        raise ValueError("a path without NUL characters")
    return path


def _header_name(text: str) -> str:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", text):  # a token of RFC 9110
        raise ValueError("the name of an HTTP header, as 'X-Tenant': ASCII letters, digits and !#$%&'*+-.^_`|~")
    return text


UserPath = Annotated[str, Field(min_length=1), AfterValidator(expanded_path)]


class Section(BaseModel):
    """Base of every group of settings: frozen, strictly typed; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Faults(Section):
    """Containment of proposers that raise, exceed their deadline or return malformed drafts."""

    max_consecutive: int = Field(
        default=3, ge=1, description="faults in a row after which a proposer is switched off for a while"
    )
    cooldown_steps: int = Field(
        default=64, ge=1, description="engine steps that a proposer stays switched off before it may try again"
    )
    host_deadline_ms: float | None = Field(
        default=100.0,
        gt=0,
        description="milliseconds that a proposer on the host may take for one step before its drafts are dropped; "
        "null sets no deadline, so a proposer that hangs then hangs its engine",
    )


class Limits(Section):
    """Upper limits on the references, documents and corpora of requests."""

    max_references: int = Field(
        default=8, ge=0, description="reference texts per request, the prediction included; 0 refuses them"
    )
    max_reference_tokens: int = Field(
        default=1_000_000, ge=1, description="tokens of all reference texts of one request together"
    )
    max_documents: int = Field(
        default=64, ge=0, description="stored documents that one request may name; 0 refuses them"
    )
    max_corpora: int = Field(default=16, ge=0, description="corpora that one request may name; 0 refuses them")
    max_client_reference_tokens: int = Field(
        default=32_000_000,
        ge=1,
        description="reference tokens that the HTTP requests of one client hold at a time, waiting or running, each "
        "prompt and sample counted",
    )
    max_server_reference_tokens: int = Field(
        default=64_000_000, ge=1, description="likewise of all clients, in one process that serves HTTP"
    )


class TenantSettings(Section):
    """The source of tenants' names in HTTP requests; at most one of these."""

    header: Annotated[str, AfterValidator(_header_name)] | None = Field(
        default=None,
        description="HTTP header that holds the tenant, which a proxy sets; null: requests name their tenants",
    )
    keys: UserPath | None = Field(
        default=None,
        description="JSON file of tenants by the SHA-256 of API keys; null: requests name their tenants",
    )

    @model_validator(mode="after")
    def _only_one(self) -> TenantSettings:
        if self.header is not None and self.keys is not None:
            raise ValueError("either 'header' or 'keys'")
        return self


class CorporaSettings(Section):
    """The corpora that proposers draft from; see `specplug.corpus`."""

    store: UserPath | None = Field(
        default=None,
        description="folder of the corpus store to draft from, see `specplug corpus`; null: none",
    )
    poll_seconds: float = Field(
        default=1.0, gt=0, le=3600, description="seconds between checks of the store for changes"
    )
    max_tokens: int = Field(
        default=1_000_000_000, ge=1, description="most tokens of one tenant's corpora that this server adds to"
    )
    device_gib: float = Field(
        default=2.0, gt=0, le=8, description="GiB of a GPU's memory for corpora; those that do not fit are left out"
    )
    max_request_bytes: int = Field(
        default=64 << 20, ge=1, description="bytes of one request that adds documents over specplug's own HTTP routes"
    )


class CostSettings(Section):
    """What the engine's steps cost, by which policies decide how much to verify; see docs/policies.md."""

    measure: bool = Field(
        default=True, description="time some of the engine's steps before the first request, unless it is known already"
    )
    seconds: float = Field(default=2.0, gt=0, le=600, description="seconds that these steps may take together, at most")


class TraceSettings(Section):
    """The record of drafts and verdicts."""

    path: UserPath | None = Field(
        default=None, description="JSONL file that drafts and verdicts are written to; null writes none"
    )


class ControlSettings(Section):
    """Operator controls of a running server, for engines whose adapter supports them."""

    file: UserPath | None = Field(
        default=None,
        description="JSON file that switches speculation while serving, read every poll_seconds; null watches none",
    )
    poll_seconds: float = Field(default=1.0, ge=0, le=3600, description="seconds between reads of the control file")


class Settings(Section):
    """All settings of a server, fixed at start-up.

    `options` holds plug-ins' own settings in raw form; `plugin_options` turns them into the model that a plug-in
    registered.
    """

    mode: Literal["on", "off"] = Field(default="on", description="'off' serves every request by plain decoding")
    proposer: str = Field(
        default="ngram",
        description="the proposer that drafts, unless a request names another; 'engine' is the engine's own drafter",
    )
    extra_proposers: tuple[str, ...] = Field(
        default=(), strict=False, description="further proposers to load at start-up, which requests may name"
    )
    policy: str = Field(
        default="batch",
        description="the policy that chooses draft lengths, several joined by '+'; by default 'adaptive+batch' for the "
        "engine's own drafter",
    )
    verifier: str = Field(
        default="reference",
        description="the verifier that accepts or rejects drafts; an engine with its own uses this only when it is set",
    )
    acceptance_thresholds: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(
        default_factory=dict,
        description="thresholds of a lossy verifier that requests may name, for example one for each kind of workload",
    )
    num_speculative_tokens: int = Field(
        default=DEFAULT_SPECULATIVE_TOKENS,
        ge=0,
        le=MAX_SPECULATIVE_TOKENS,
        description="most draft tokens per request and step, bonus excluded",
    )
    draft_ranks: Literal["first", "each"] = Field(
        default="first",
        description="which of several tensor-parallel ranks draft: the first, which sends its drafts to the others, or "
        "each for itself",
    )
    dropped_logits_processors: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="names of logits processors installed in vLLM that this server may run without, as the V1 runner "
        "loads none with speculation",
    )
    options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="settings of plug-ins, by plug-in name and then by that plug-in's own keys"
    )
    faults: Faults = Field(default_factory=Faults, description="containment of proposers that misbehave")
    limits: Limits = Field(default_factory=Limits, description="upper limits on what requests may carry")
    tenants: TenantSettings = Field(
        default_factory=TenantSettings, description="the source of tenants' names in HTTP requests"
    )
    corpora: CorporaSettings = Field(
        default_factory=CorporaSettings, description="the corpora that proposers draft from"
    )
    costs: CostSettings = Field(default_factory=CostSettings, description="what the engine's steps cost")
    trace: TraceSettings = Field(default_factory=TraceSettings, description="the record of drafts and verdicts")
    control: ControlSettings = Field(
        default_factory=ControlSettings, description="operator controls of a running server"
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=2**63 - 1,
        description="seed of the plug-ins' own random streams, never of the verifier's",
    )

    @property
    def drafts_in_engine(self) -> bool:
        """True if the engine's own drafter drafts, and specplug only plans."""
        return self.proposer == ENGINE_DRAFTER

    @property
    def extends_engine(self) -> bool:
        """True if the engine's own drafter drafts, and a lookup of specplug's continues its draft."""
        return self.proposer == HYBRID and self.options.get(HYBRID, {}).get("model") == ENGINE_DRAFTER

    @property
    def policies(self) -> tuple[str, ...]:
        """The names of the policies whose limits hold together."""
        return tuple(self.policy.split(JOINS_POLICIES))

    @model_validator(mode="before")
    @classmethod
    def _default_policy(cls, layer: Any) -> Any:
        if isinstance(layer, Mapping) and layer.get("proposer") == ENGINE_DRAFTER:
            return {"policy": ENGINE_DRAFTER_POLICY, **layer}
        return layer

    @field_validator("policy")
    @classmethod
    def _differ(cls, policy: str) -> str:
        names = policy.split(JOINS_POLICIES)
        if len(set(names)) < len(names):
            raise ValueError(f"names that differ from each other, joined by {JOINS_POLICIES!r}")
        return policy

    @field_validator("extra_proposers")
    @classmethod
    def _each_once(cls, extra: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        proposer = info.data.get("proposer")
        if proposer in extra or len(set(extra)) < len(extra):
            raise ValueError(f"names that differ from each other and from 'proposer', {proposer!r}")
        return extra


class ThresholdSettings(BaseModel):
    """Settings of the verifier `threshold`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    threshold: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="least probability of an accepted token, relative to that of the likeliest one, for requests that "
        "name no acceptance_threshold; 1 is lossless",
    )


class TypicalSettings(ThresholdSettings):
    """Settings of the verifier `typical`."""

    threshold: float = Field(
        default=0.09,
        gt=0,
        le=1,
        description="epsilon of typical acceptance, whose delta is its square root, for requests that name no "
        "acceptance_threshold; 1 is lossless",
    )
