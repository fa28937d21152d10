"""`specplug doctor --target --draft`: the checklist of a target model and a draft model, and a quick run of both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from specplug.counts import MetricsSnapshot, SourceCounts
from specplug.draft_model.facts import ModelFacts, cache_elements, count_parameters, read_facts
from specplug.draft_model.pairing import TokenizerPair
from specplug.errors import SpecplugError, describe
from specplug.plugins.embedded import TextRequest
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import CheckResult, ProposerSpec
from specplug.settings import load_settings
from specplug.settings.checks import plugin_options
from specplug.text.tokenizers import load_tokenizer
from specplug.text.translate.vocabulary import REMEDY, Vocabulary
from specplug.tools.cli.launch import find_model, prompt_form, start_engine
from specplug.tools.cli.output import faults_of, print_note
from specplug.tools.forecast.acceptance import acceptance_of_counts
from specplug.tools.forecast.model_shape import ModelShape, count_shape
from specplug.tools.forecast.speedup import forecast, saturation_cost

_OVERHEAD = 0.02
"""The fixed cost of drafting per step, in steps without drafts: the default of `specplug plan`."""

ROUTES = {
    "auto": "text, and as common ids where a sampled request's are accepted more often",
    "slem": "text",
    "tli": "common ids",
}
"""How drafts go from one tokenizer to another, by the setting `route` of the proposer `crosstok`."""


@dataclass(frozen=True, slots=True)
class PairResult(CheckResult):
    """Result of a check of a pairing, with its figures for programs."""

    figures: dict[str, Any] = field(default_factory=dict)


class Pairing(NamedTuple):
    """The two models, and the proposer `crosstok`'s options in effect."""

    target: ModelFacts
    draft: ModelFacts
    options: Any


def check_pairing(
    target: str,
    draft: str,
    prompts: Sequence[str],
    progress: Callable[[str], object],
    *,
    raw: bool,
    max_tokens: int,
    gamma: int,
) -> Iterator[tuple[str, PairResult]]:
    """Yield the results for two folders, model ids, or names of shipped models; what needs a failed check is left out.

    The prompts of the quick run are put into the target's chat template, if it has one, unless they are `raw`.
    `progress` is called with what is being done.
    """
    facts = (read_facts(find_model(target)), read_facts(find_model(draft)))
    registry = default_registry()
    settings = load_settings(registry=registry, engine_drafts=True).settings
    pair = Pairing(*facts, plugin_options(settings, registry.get(ProposerSpec, "crosstok")))
    found: dict[str, PairResult] = {}
    for name, check in CHECKS.items():
        if name in COUNTED and found["kinds"].status == "fail":
            continue
        progress(f"checking: {name}")
        found[name] = check(pair)
        yield name, found[name]
    if "fail" in (found["tokenizers"].status, found["kinds"].status):
        return
    if not prompts:
        remedy = "Give --prompt TEXT or --prompts FILE"
        yield "quick run", PairResult("ok", "left out, because it needs prompts", remedy)
        return
    try:
        form, described = prompt_form(target, raw=raw)
        print_note(described)
        requests = [TextRequest(prompt=form(text), max_tokens=max_tokens) for text in prompts]
        yield from run_quickly(target, pair.draft.path, requests, progress, found["size"].figures["draft_cost"], gamma)
    except Exception as error:  # engines raise many kinds, and the results above are to be shown
        yield "quick run", PairResult("fail", _explained(error), "Do what the message says, or leave out the prompts")


def check_tokenizers(pair: Pairing) -> PairResult:
    """Compare the tokenizers, and say how drafts go from one to the other."""
    target, draft, options = pair
    try:
        own, other = (load_tokenizer(facts.path).library for facts in (target, draft))
        tokenizers = TokenizerPair.of(own, other, target.vocab_size, draft.vocab_size)
    except Exception as error:  # libraries of tokenizers raise many kinds
        return PairResult("fail", _explained(error).removesuffix(f". {REMEDY}"), REMEDY)
    shared = tokenizers.intersection
    is_same = tokenizers.is_same
    figures = {"same": is_same, "route": "same ids" if is_same else options.route}
    figures |= {"overlap_of_target_percent": shared.of_target, "overlap_of_draft_percent": shared.of_draft}
    if tokenizers.vocabularies is None:
        return PairResult("ok", "the same, so drafts go as the same ids", "", figures)
    summary = (
        f"different: {shared.of_target:.1f}% of the target's vocabulary and {shared.of_draft:.1f}% of the draft's "
        f"are common; drafts go as {ROUTES[options.route]}"
    )
    for whose, each in zip(("target", "draft"), tokenizers.vocabularies, strict=True):
        if limits := _limits(each):
            summary += f"; the {whose}'s {limits}"
    return PairResult("ok", summary, "", figures)


def _limits(vocabulary: Vocabulary) -> str:
    """Return what a tokenizer does not keep of texts; nothing is drafted where its tokens cannot spell the text."""
    missing = vocabulary.byte_ids.count(-1)
    bytes_missing = "has no tokens for bytes" if missing == 256 else f"has no token for {missing} of 256 bytes"
    return " and ".join([bytes_missing] * (missing > 0) + ["normalises text"] * vocabulary.alters_text)


def check_kinds(pair: Pairing) -> PairResult:
    """Check that both are decoders, and that the draft model's cache can be rolled back."""
    try:
        for facts in (pair.target, pair.draft):
            count_parameters(facts)
        is_certain = cache_elements(pair.draft) is not None
    except SpecplugError as error:
        return PairResult("fail", str(error), "Choose a decoder-only model, and a draft with plain attention")
    figures = {"target": pair.target.kind, "draft": pair.draft.kind}
    summary = f"target {pair.target.kind}, draft {pair.draft.kind}"
    return PairResult("ok", summary + ", whose layers all keep keys and values" * is_certain, "", figures)


def check_lengths(pair: Pairing) -> PairResult:
    """Compare the most tokens of a text."""
    target = pair.target.max_length
    draft = pair.draft.max_length
    most = pair.options.max_context
    figures: dict[str, Any] = {"target": target, "draft": draft}
    shown = ", ".join(f"{who} {'not stated' if n is None else f'{n:,} tokens'}" for who, n in figures.items())
    if draft is not None and (target is None or draft < target):
        summary = f"{shown}: of longer requests, the draft model reads the newest tokens only"
        return PairResult("warn", summary, "Choose a draft model of more positions if longer requests matter", figures)
    if target is None or most < target:
        shown += f"; crosstok reads the newest {most:,} (options.crosstok.max_context)"
    return PairResult("ok", shown, "", figures)


def check_size(target: ModelShape, draft: ModelShape) -> PairResult:
    """Compare parameters, and the bytes of weights that a step reads, from which the ratio of speeds is estimated."""
    target_read, draft_read = (shape.parameters_read(1) * (shape.weight_bits or 16) / 8 for shape in (target, draft))
    speed = target_read / draft_read
    summary = (
        f"{_count(target.parameters)} and {_count(draft.parameters)} parameters, "
        f"{target.parameters / draft.parameters:.1f} to 1; the draft model is an estimated {speed:.1f} times as fast, "
        f"by bytes of weights read per token: {_bytes(target_read)} and {_bytes(draft_read)}"
    )
    status = "ok"
    remedy = ""
    if speed <= 1:
        status = "fail"
        remedy = f"Choose a smaller draft model{'; are --target and --draft swapped?' if speed < 1 else ''}"
    elif speed < 2:
        status = "warn"
        remedy = "Choose a smaller draft model; this one takes more than half of the target's time"
    figures = {"target_parameters": target.parameters, "draft_parameters": draft.parameters, "speed_ratio": speed}
    figures |= {"draft_cost": 1 / speed, "target_bytes_read": target_read, "draft_bytes_read": draft_read}
    return PairResult(status, summary, remedy, figures)


def check_memory(pair: Pairing) -> PairResult:
    """Compute the memory of the draft model's weights and cache."""
    draft = pair.draft
    options = pair.options
    device, dtype = _place(draft, options)
    elements = cache_elements(draft)
    context = min(options.max_context, draft.max_length or options.max_context)
    weights = count_shape(draft).parameters * (draft.quantised_bits or 8.0 * dtype.itemsize) / 8
    name = str(dtype).removeprefix("torch.")
    figures: dict[str, Any] = {"weights": weights, "max_requests": options.max_requests, "max_context": context}
    figures |= {"device": device, "dtype": name}
    summary = f"in {name} on {device}: {_bytes(weights)} of weights, and a key-value cache of "
    if elements is None:
        return PairResult("warn", f"{summary}unknown size", "Measure it on the server", figures)
    per_token = float(elements * dtype.itemsize)
    cache = options.max_requests * context * per_token
    total = _memory_of(device)
    figures |= {"kv_cache": cache, "kv_per_token": per_token}
    summary += f"{_bytes(cache)} for {options.max_requests} requests of {context:,} tokens"
    narrower = ", or set options.crosstok.dtype to bfloat16" if dtype.itemsize > 2 else ""
    remedy = f"To lower it, lower options.crosstok.max_requests or max_context{narrower}"
    if total is not None and weights + cache > total:
        return PairResult("warn", f"{summary}; this machine has {_bytes(total)}", remedy, figures)
    return PairResult("ok", summary, remedy, figures)


CHECKS: dict[str, Callable[[Pairing], PairResult]] = {
    "tokenizers": check_tokenizers,
    "kinds": check_kinds,
    "maximum lengths": check_lengths,
    "size": lambda pair: check_size(count_shape(pair.target), count_shape(pair.draft)),
    "memory": check_memory,
}
"""The checks without a run, in order."""

COUNTED = ("size", "memory")
"""Those that count parameters, which is possible of supported kinds only."""


def run_quickly(
    target: str,
    draft: str,
    requests: Sequence[TextRequest],
    progress: Callable[[str], object],
    draft_cost: float,
    gamma: int,
) -> Iterator[tuple[str, PairResult]]:
    """Serve prompts greedily; yield what was accepted, whether the outputs are equal, and the speed-up that follows.

    `draft_cost` is the cost of drafting a token, in steps without drafts.
    """
    num_seqs = min(len(requests), 8)
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
        with closing(start_engine(target, {**settings, "mode": mode}, **place)) as engine:
            answers: list[list[int]] = [[] for _ in requests]
            for update in engine.stream(requests):
                answers[update.index] += update.token_ids
            runs.append((answers, engine.metrics.snapshot()))
    (expected, _), (answers, found) = runs
    yield "acceptance", check_acceptance(found, gamma, len(requests), sum(map(len, answers)))
    yield "outputs", check_outputs(answers, expected)
    if found.total.proposed:
        yield "speed-up", check_speedup(found.total, gamma, draft_cost)


def check_acceptance(found: MetricsSnapshot, gamma: int, num_prompts: int, num_tokens: int) -> PairResult:
    """Report what was accepted; faults fail."""
    total = found.total
    figures: dict[str, Any] = {
        "gamma": gamma,
        "tokens_per_step": total.tau,
        "acceptance_rate": total.acceptance_rate,
        "acceptance_by_position": list(total.acceptance_by_position),
        "accepted_by_source": {name: each.accepted for name, each in found.by_source.items() if each.proposed},
        "faults": found.faults,
    }
    faults = faults_of(found.faults)
    if faults:
        return PairResult("fail", f"faults: {', '.join(faults)}", "Read the warnings above", figures)
    if not total.proposed:
        return PairResult("warn", "nothing was drafted", "Give longer prompts or --max-tokens", figures)
    summary = (
        f"tau {total.tau or 0:.2f} tokens per step, {total.acceptance_rate or 0:.0%} of the draft tokens accepted, at "
        f"gamma {gamma}; {num_tokens} tokens of {num_prompts} prompts, greedily"
    )
    return PairResult("ok", summary, "", figures)


def check_outputs(answers: list[list[int]], expected: list[list[int]]) -> PairResult:
    """Compare the outputs; in float32 they must be equal."""
    differing = sum(map(list.__ne__, answers, expected))
    device, dtype = _device()
    figures: dict[str, Any] = {"identical": not differing, "device": device, "dtype": dtype}
    if not differing:
        return PairResult("ok", f"identical to those without speculation, in {dtype} on {device}", "", figures)
    summary = f"{differing} of {len(answers)} differ from those without speculation, in {dtype} on {device}"
    if dtype == "float32":
        return PairResult("fail", summary, "Report this to specplug, with the prompts and the models", figures)
    remedy = "Two tokens can tie to within rounding; hide the GPU with CUDA_VISIBLE_DEVICES= to run in float32"
    return PairResult("warn", summary, remedy, figures)


def check_speedup(total: SourceCounts, gamma: int, draft_cost: float) -> PairResult:
    """Forecast the speed-up of one request by draft length, as `specplug plan` does from the counts of a server."""
    acceptance = acceptance_of_counts(
        total.accepted_at[:gamma], total.verified_at[:gamma], total.target_steps, "quick run"
    )
    options: dict[str, Any] = {"draft_cost": lambda batch: draft_cost, "overhead": _OVERHEAD}
    (found,) = forecast(acceptance, saturation_cost(), [1], gamma, **options)
    at = found["lengths"][-1]
    best = found["best"]
    figures = {"at_gamma": at["speedup"], "gamma": at["gamma"], "best_gamma": best["gamma"], "best": best["speedup"]}
    shown = f"for one request, by the estimated speed: {at['speedup']:.2f} at gamma {at['gamma']}; "
    if not best["gamma"]:
        remedy = "Choose a smaller draft model, or one that agrees with the target more often"
        return PairResult("warn", f"{shown}no gamma up to {gamma} gains", remedy, figures)
    summary = f"{shown}best up to gamma {gamma}: {best['speedup']:.2f}, at gamma {best['gamma']}"
    longer = "Run it with a larger --gamma too. " if best["gamma"] == gamma else ""
    remedy = f"{longer}It is predicted, not measured; for batches: specplug plan --draft-cost {draft_cost:.3g}"
    return PairResult("ok", summary, remedy, figures)


def _device() -> tuple[str, str]:
    """Return the device and the dtype of the quick run: those that the engine chooses by itself."""
    return ("cuda", "bfloat16") if torch.cuda.is_available() else ("cpu", "float32")


def _place(draft: ModelFacts, options: Any) -> tuple[str, torch.dtype]:
    """Return where the draft model would run, and in which dtype."""
    device = _device()[0] if options.device == "auto" else options.device
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
