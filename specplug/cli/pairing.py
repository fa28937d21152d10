"""`specplug doctor --target --draft`: the checklist of a target model and a draft model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
import typer

from specplug.cli.chat import note, prompt_form
from specplug.cli.findings import PairingFinding, finding, print_findings
from specplug.cli.launch import find_model
from specplug.cli.output import console, print_json
from specplug.cli.pairing_run import Progress, quick_run
from specplug.draft_model.facts import ModelFacts, Parameters, cache_elements, count_parameters, read_facts
from specplug.draft_model.pairing import Pair
from specplug.errors import SettingsError, SpecplugError, describe
from specplug.forecast.memory import model_memory
from specplug.forecast.model_shape import ModelShape
from specplug.forecast.step_cost import Gpu, RooflineCost
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import ProposerSpec
from specplug.settings import load_settings
from specplug.settings.plugins import plugin_options
from specplug.text.loading import load_tokenizer
from specplug.text.translate.vocabulary import REMEDY, Vocabulary

ROUTES = {
    "auto": "text, and as common ids where a sampled request's are accepted more often",
    "slem": "text",
    "tli": "common ids",
}
"""How drafts go from one tokenizer to another, by the setting `route` of the proposer `crosstok`."""


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


def doctor_of_pairing(
    target: str | None,
    draft: str | None,
    prompts: Sequence[str],
    file: Path | None,
    *,
    launch: str,
    raw: bool,
    as_json: bool,
    **run: int,
) -> None:
    """Check a pairing, print the results, and exit with 1 if a check failed.

    Args:
        target, draft: folders, model ids, or names of shipped models.
        prompts, file: prompts of the quick run, and a file of further ones, one per line.
        launch: a launch line, which belongs to the other checks.
        raw: leave prompts as they are, where the target has a chat template.
        run: `max_tokens` and `gamma` of the quick run.

    Raises:
        SettingsError, PluginError: one of the two is missing, has no configuration, or the prompts cannot be read.
    """
    if not target or not draft:
        raise SettingsError.build(
            "a pairing needs two models",
            who="specplug doctor",
            found="only --target" if target else "only --draft" if draft else "only prompts",
            expected="--target and --draft",
            remedy="Give both, or neither and no prompts to check this machine",
        )
    if launch:
        remedy = "Check it on its own: specplug doctor --launch LINE"
        raise SettingsError.build("a launch line is no part of a pairing", who="--launch", remedy=remedy)
    texts = [*prompts, *([] if file is None else _lines(file))]
    with console(stderr=True).status("reading the configurations") as status:
        findings = list(check_pairing(target, draft, texts, status.update, raw=raw, **run))
    failed = any(each.status == "fail" for each in findings)
    if as_json:
        checks = [asdict(each) for each in findings]
        print_json({"ok": not failed, "target": target, "draft": draft, "checks": checks})
    else:
        print_findings(f"Pairing of {target} and {draft}", findings)
    if failed:
        raise typer.Exit(1)


def check_pairing(
    target: str, draft: str, prompts: Sequence[str], progress: Progress, *, raw: bool, max_tokens: int, gamma: int
) -> Iterator[PairingFinding]:
    """Yield the results; those that need a check which failed before are left out.

    Args:
        target, draft, prompts, raw: see `doctor_of_pairing`.
        progress: called with what is being done.
        max_tokens, gamma: of the quick run.
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
        given = [form(text) for text in prompts]
        yield from quick_run(target, pair[1].path, given, progress, size.figures["draft_cost"], max_tokens, gamma)
    except Exception as error:  # engines raise many kinds, and the results above are to be shown
        yield finding("quick run", "fail", _explained(error), "Do what the message says, or leave out the prompts")


def check_tokenizers(target: ModelFacts, draft: ModelFacts, route: str) -> PairingFinding:
    """Compare the tokenizers, and say how drafts go from one to the other."""
    try:
        own, other = (load_tokenizer(facts.path).library for facts in (target, draft))
        pair = Pair.of(own, other, target.vocab_size, draft.vocab_size)
    except Exception as error:  # libraries of tokenizers raise many kinds
        return finding("tokenizers", "fail", _explained(error).removesuffix(f". {REMEDY}"), REMEDY)
    shared, is_same = pair.intersection, pair.translator is None
    summary = "the same, so drafts go as the same ids"
    if pair.translator is not None:
        summary = (
            f"different: {shared.of_target:.1f}% of the target's vocabulary and {shared.of_draft:.1f}% of the draft's "
            f"are common; drafts go as {ROUTES[route]}"
        )
        named = zip(("target", "draft"), (pair.translator.target, pair.translator.draft), strict=True)
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


def _lines(file: Path) -> list[str]:
    """Return the lines of a file that are not blank.

    Raises:
        SettingsError: it cannot be read, or has none.
    """
    try:
        found = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError.build("cannot read the prompts", who=f"--prompts {file}", found=error) from error
    if not found:
        raise SettingsError.build("no prompts", who=f"--prompts {file}", expected="one prompt per line")
    return found


def _explained(error: Exception) -> str:
    return str(error) if isinstance(error, SpecplugError) else describe(error)


def _count(number: float) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.2f} M"


def _bytes(number: float) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"
