"""`specplug doctor --target --draft`: the checklist of a target model and a draft model, and a quick run of both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from specplug.cli.chat import note, prompt_form
from specplug.cli.doctor import Finding
from specplug.cli.launch import find_model, start_engine
from specplug.draft_model.facts import ModelFacts, Parameters, cache_elements, count_parameters, read_facts
from specplug.draft_model.pairing import TokenizerPair
from specplug.errors import SpecplugError, describe
from specplug.forecast.acceptance import Acceptance
from specplug.forecast.memory import model_memory
from specplug.forecast.model_shape import ModelShape
from specplug.forecast.speedup import forecast
from specplug.forecast.step_cost import Gpu, RooflineCost, SaturationCost
from specplug.metrics import MetricsSnapshot, SourceCounts
from specplug.plugins.embedded import TextRequest
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import ProposerSpec
from specplug.settings import load_settings
from specplug.settings.sources import plugin_options
from specplug.text.loading import load_tokenizer
from specplug.text.translate.vocabulary import REMEDY, Vocabulary

_OVERHEAD = 0.02
"""The fixed cost of drafting per step, in steps without drafts: the default of `specplug plan`."""

_MOST_AT_ONCE = 8

Progress = Callable[[str], object]
"""Called with what is being done."""

ROUTES = {
    "auto": "text, and as common ids where a sampled request's are accepted more often",
    "slem": "text",
    "tli": "common ids",
}
"""How drafts go from one tokenizer to another, by the setting `route` of the proposer `crosstok`."""


@dataclass(frozen=True, slots=True)
class PairingFinding(Finding):
    """One result about a pair of models, with its figures for programs."""

    figures: dict[str, Any]


def finding(check: str, status: str, summary: str, remedy: str = "", **figures: Any) -> PairingFinding:
    """Return one result of the core about a pair of models."""
    return PairingFinding(check, "specplug", status, summary, remedy, figures)


class PairedModel(NamedTuple):
    """One of the two models, with its number of parameters."""

    facts: ModelFacts
    parameters: Parameters

    def shape(self, kv_elements: int = 0) -> ModelShape:
        """Return the model's sizes as a forecast takes them; the experts of all layers count as those of one."""
        of = self.parameters
        return ModelShape(
            self.facts.path, of.dense, of.embedding, int(of.experts > 0), of.experts, of.experts_per_token, of.expert,
            kv_elements, kv_heads=1, attention_flops=0, weight_bits=self.facts.weight_bits,
        )  # fmt: skip

    @property
    def bytes_read(self) -> float:
        """The bytes of weights that a step of one token reads."""
        return self.shape().parameters_read(1) * self.facts.weight_bits / 8


def check_pairing(
    target: str, draft: str, prompts: Sequence[str], progress: Progress, *, raw: bool, max_tokens: int, gamma: int
) -> Iterator[PairingFinding]:
    """Yield the results; those that need a check which failed before are left out.

    Args:
        target, draft: folders, model ids, or names of shipped models.
        prompts: of the quick run; `raw` leaves them as they are, where the target has a chat template.
        progress: called with what is being done.
        max_tokens, gamma: most tokens per answer, and draft tokens per step, of the quick run.
    """
    pair = read_facts(find_model(target)), read_facts(find_model(draft))
    registry = default_registry()
    settings = load_settings(registry=registry, engine_drafts=True).settings
    options = plugin_options(settings, registry.get(ProposerSpec, "crosstok"))
    progress("comparing the tokenizers")
    yield (tokenizers := check_tokenizers(*pair, options.route))
    progress("counting parameters")
    yield (kinds := check_kinds(*pair))
    yield check_lengths(*pair, options.max_context)
    if kinds.status == "fail":
        return
    models = [PairedModel(facts, count_parameters(facts)) for facts in pair]
    yield (size := check_size(*models))
    yield check_memory(models[1], options)
    if tokenizers.status == "fail":
        return
    if not prompts:
        yield finding("quick run", "ok", "left out, because it needs prompts", "Give --prompt TEXT or --prompts FILE")
        return
    try:
        form, described = prompt_form(target, raw=raw)
        note(described)
        requests = [TextRequest(prompt=form(text), max_tokens=max_tokens) for text in prompts]
        yield from quick_run(target, pair[1].path, requests, progress, size.figures["draft_cost"], gamma)
    except Exception as error:  # engines raise many kinds, and the results above are to be shown
        yield finding("quick run", "fail", _explained(error), "Do what the message says, or leave out the prompts")


def check_tokenizers(target: ModelFacts, draft: ModelFacts, route: str) -> PairingFinding:
    """Compare the tokenizers, and say how drafts go from one to the other."""
    try:
        own, other = (load_tokenizer(facts.path).library for facts in (target, draft))
        pair = TokenizerPair.of(own, other, target.vocab_size, draft.vocab_size)
    except Exception as error:  # libraries of tokenizers raise many kinds
        return finding("tokenizers", "fail", _explained(error).removesuffix(f". {REMEDY}"), REMEDY)
    shared, is_same = pair.intersection, pair.is_same
    summary = "the same, so drafts go as the same ids"
    if pair.vocabularies is not None:
        summary = (
            f"different: {shared.of_target:.1f}% of the target's vocabulary and {shared.of_draft:.1f}% of the draft's "
            f"are common; drafts go as {ROUTES[route]}"
        )
        named = zip(("target", "draft"), pair.vocabularies, strict=True)
        summary += "".join(f"; the {whose}'s {limits}" for whose, each in named if (limits := _limits(each)))
    return finding(
        "tokenizers", "ok", summary, same=is_same, route="same ids" if is_same else route,
        overlap_of_target_percent=shared.of_target, overlap_of_draft_percent=shared.of_draft,
    )  # fmt: skip


def _limits(vocabulary: Vocabulary) -> str:
    """Return what a tokenizer does not keep of texts; nothing is drafted where its tokens cannot spell the text."""
    missing = vocabulary.byte_ids.count(-1)
    limits = [f"has no token for {missing} of 256 bytes"] if 0 < missing < 256 else []
    limits += ["has no tokens for bytes"] if missing == 256 else []
    return " and ".join([*limits, *["normalises text"] * vocabulary.alters_text])


def check_kinds(target: ModelFacts, draft: ModelFacts) -> PairingFinding:
    """Check that both are decoders, and that the draft model's cache can be rolled back."""
    try:
        for facts in (target, draft):
            count_parameters(facts)
        is_certain = cache_elements(draft) is not None
    except SpecplugError as error:
        return finding("kinds", "fail", str(error), "Choose a decoder-only model, and a draft with plain attention")
    summary = f"target {target.kind}, draft {draft.kind}"
    summary += ", whose layers all keep keys and values" if is_certain else ""
    return finding("kinds", "ok", summary, target=target.kind, draft=draft.kind)


def check_lengths(target: ModelFacts, draft: ModelFacts, max_context: int) -> PairingFinding:
    """Compare the most tokens of a text."""
    figures: dict[str, Any] = {"target": target.max_length, "draft": draft.max_length}
    shown = ", ".join(f"{who} {'not stated' if n is None else f'{n:,} tokens'}" for who, n in figures.items())
    if draft.max_length is not None and (target.max_length is None or draft.max_length < target.max_length):
        summary = f"{shown}: of longer requests, the draft model reads the newest tokens only"
        remedy = "Choose a draft model of more positions if longer requests matter"
        return finding("maximum lengths", "warn", summary, remedy, **figures)
    if target.max_length is None or max_context < target.max_length:
        shown += f"; crosstok reads the newest {max_context:,} (options.crosstok.max_context)"
    return finding("maximum lengths", "ok", shown, **figures)


def check_size(target: PairedModel, draft: PairedModel) -> PairingFinding:
    """Compare parameters, and the bytes of weights that a step reads, from which the ratio of speeds is estimated."""
    counts = [model.shape().parameters for model in (target, draft)]
    speed = target.bytes_read / draft.bytes_read
    summary = (
        f"{_count(counts[0])} and {_count(counts[1])} parameters, {counts[0] / counts[1]:.1f} to 1; the draft model is "
        f"an estimated {speed:.1f} times as fast, by bytes of weights read per token: {_bytes(target.bytes_read)} "
        f"and {_bytes(draft.bytes_read)}"
    )
    status, remedy = "ok", ""
    if speed <= 1:
        status, remedy = "fail", "Choose a smaller draft model"
        remedy += "; are --target and --draft swapped?" if speed < 1 else ""
    elif speed < 2:
        status, remedy = "warn", "Choose a smaller draft model; this one takes more than half of the target's time"
    return finding(
        "size", status, summary, remedy, target_parameters=counts[0], draft_parameters=counts[1], speed_ratio=speed,
        draft_cost=1 / speed, target_bytes_read=target.bytes_read, draft_bytes_read=draft.bytes_read,
    )  # fmt: skip


def check_memory(draft: PairedModel, options: Any) -> PairingFinding:
    """Compute the memory of weights and cache, with the settings of the proposer `crosstok` that are in effect."""
    device, dtype = _place(draft.facts, options)
    elements, limit = cache_elements(draft.facts), draft.facts.max_length
    context = min(options.max_context, limit or options.max_context)
    bits = 8.0 * dtype.itemsize
    cost = RooflineCost(draft.shape(elements or 0), Gpu(1.0, 1.0), context, draft.facts.quantised_bits or bits, bits)
    found, name = model_memory(cost, options.max_requests), str(dtype).removeprefix("torch.")
    figures: dict[str, Any] = {"weights": found.weights, "max_requests": options.max_requests, "max_context": context}
    figures |= {"device": device, "dtype": name}
    summary = f"in {name} on {device}: {_bytes(found.weights)} of weights, and a key-value cache of "
    if elements is None:
        return finding("memory", "warn", f"{summary}unknown size", "Measure it on the server", **figures)
    summary += f"{_bytes(found.kv_cache)} for {options.max_requests} requests of {context:,} tokens"
    figures |= {"kv_cache": found.kv_cache, "kv_per_token": found.kv_per_token}
    narrower = ", or set options.crosstok.dtype to bfloat16" if bits > 16 else ""
    remedy = f"To lower it, lower options.crosstok.max_requests or max_context{narrower}"
    total = _memory_of(device)
    if total is not None and found.weights + found.kv_cache > total:
        return finding("memory", "warn", f"{summary}; this machine has {_bytes(total)}", remedy, **figures)
    return finding("memory", "ok", summary, remedy, **figures)


def quick_run(
    target: str, draft: str, requests: Sequence[TextRequest], progress: Progress, draft_cost: float, gamma: int
) -> Iterator[PairingFinding]:
    """Serve prompts greedily; yield what was accepted, whether the outputs are equal, and the speed-up that follows.

    `draft_cost` is the cost of drafting a token, in steps without drafts.
    """
    num_seqs = min(len(requests), _MOST_AT_ONCE)
    # Nothing depends on time, this model alone drafts, and no server's files are touched.
    settings: dict[str, Any] = {
        "proposer": "crosstok",
        "extra_proposers": [],
        "policy": "fixed",
        "num_speculative_tokens": gamma,
        "options": {"crosstok": {"model": draft, "max_requests": num_seqs, "max_ms": None}, "fixed": {"gamma": gamma}},
        **{"faults": {"host_deadline_ms": None}, "trace": {"path": None}, "control": {"file": None}},
    }
    device, dtype = _device()
    place: dict[str, Any] = {"device": device, "dtype": dtype, "max_num_seqs": num_seqs}
    runs: list[tuple[list[list[int]], MetricsSnapshot]] = []
    for how, mode in (("without", "off"), ("with", "on")):
        progress(f"quick run: {how} speculation")
        engine = start_engine(target, {**settings, "mode": mode}, **place)
        try:
            answers: list[list[int]] = [[] for _ in requests]
            for update in engine.stream(requests):
                answers[update.index] += update.token_ids
            runs.append((answers, engine.metrics.snapshot()))
        finally:
            engine.close()
    (expected, _), (answers, counted) = runs
    yield check_acceptance(counted, gamma, len(requests), sum(map(len, answers)))
    yield check_outputs(answers, expected)
    if counted.total.proposed:
        yield check_speedup(counted.total, gamma, draft_cost)


def check_acceptance(counted: MetricsSnapshot, gamma: int, num_prompts: int, num_tokens: int) -> PairingFinding:
    """Report what was accepted; faults fail."""
    total = counted.total
    figures: dict[str, Any] = {
        "gamma": gamma,
        "tokens_per_step": total.tau,
        "acceptance_rate": total.acceptance_rate,
        "acceptance_by_position": list(total.acceptance_by_position),
        "accepted_by_source": {name: each.accepted for name, each in counted.by_source.items() if each.proposed},
        "faults": counted.faults,
    }
    faults = [f"{count} {kind} ({who})" for who, kinds in counted.faults.items() for kind, count in kinds.items()]
    if faults:
        return finding("acceptance", "fail", f"faults: {', '.join(faults)}", "Read the warnings above", **figures)
    if not total.proposed:
        return finding("acceptance", "warn", "nothing was drafted", "Give longer prompts or --max-tokens", **figures)
    summary = (
        f"tau {total.tau or 0:.2f} tokens per step, {total.acceptance_rate or 0:.0%} of the draft tokens accepted, at "
        f"gamma {gamma}; {num_tokens} tokens of {num_prompts} prompts, greedily"
    )
    return finding("acceptance", "ok", summary, **figures)


def check_outputs(answers: list[list[int]], expected: list[list[int]]) -> PairingFinding:
    """Compare the outputs; in float32 they must be equal."""
    differing, (device, dtype) = sum(map(list.__ne__, answers, expected)), _device()
    figures: dict[str, Any] = {"identical": not differing, "device": device, "dtype": dtype}
    if not differing:
        return finding("outputs", "ok", f"identical to those without speculation, in {dtype} on {device}", **figures)
    summary = f"{differing} of {len(answers)} differ from those without speculation, in {dtype} on {device}"
    status, remedy = "fail", "Report this to specplug, with the prompts and the models"
    if dtype != "float32":
        status = "warn"
        remedy = "Two tokens can tie to within rounding; hide the GPU with CUDA_VISIBLE_DEVICES= to run in float32"
    return finding("outputs", status, summary, remedy, **figures)


def check_speedup(total: SourceCounts, gamma: int, draft_cost: float) -> PairingFinding:
    """Forecast the speed-up of one request by draft length, as `specplug plan` does from the counts of a server."""
    survival, verified = (
        tuple(count / total.target_steps for count in counts[:gamma])
        for counts in (total.accepted_at, total.verified_at)
    )
    acceptance, cost = Acceptance(survival, verified, "quick run"), SaturationCost()
    (found,) = forecast(acceptance, cost, [1], gamma, draft_cost=lambda batch: draft_cost, overhead=_OVERHEAD)
    at, best = found.lengths[-1], found.best
    figures: dict[str, Any] = {"at_gamma": at.speedup, "gamma": at.gamma, "best_gamma": best.gamma}
    figures["best"] = best.speedup
    shown = f"for one request, by the estimated speed: {at.speedup:.2f} at gamma {at.gamma}; "
    if not best.gamma:
        remedy = "Choose a smaller draft model, or one that agrees with the target more often"
        return finding("speed-up", "warn", f"{shown}no gamma up to {gamma} gains", remedy, **figures)
    summary = f"{shown}best up to gamma {gamma}: {best.speedup:.2f}, at gamma {best.gamma}"
    longer = "Run it with a larger --gamma too. " if best.gamma == gamma else ""
    remedy = f"{longer}It is predicted, not measured; for batches: specplug plan --draft-cost {draft_cost:.3g}"
    return finding("speed-up", "ok", summary, remedy, **figures)


def _device() -> tuple[str, str]:
    """Return the device and the dtype of the quick run: those that the engine chooses by itself."""
    return ("cuda", "bfloat16") if torch.cuda.is_available() else ("cpu", "float32")


def _place(draft: ModelFacts, options: Any) -> tuple[str, torch.dtype]:
    """Return where the draft model would run, and in which dtype."""
    device = ("cuda" if torch.cuda.is_available() else "cpu") if options.device == "auto" else options.device
    if options.dtype != "auto":
        return device, getattr(torch, options.dtype)
    return device, torch.float32 if device == "cpu" else draft.dtype


def _memory_of(device: str) -> int | None:
    """Return the bytes of a GPU, or of this machine; None if they are not known."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_properties(device).total_memory if torch.cuda.is_available() else None
    is_known = device == "cpu" and "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if is_known else None


def _explained(error: Exception) -> str:
    return str(error) if isinstance(error, SpecplugError) else describe(error)


def _count(number: float) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.2f} M"


def _bytes(number: float) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"
