"""The draft model, its tokenizer beside the target's, and the memory that the proposer declares for it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.draft_model.facts import cache_elements, count_parameters, read_facts
from specplug.draft_model.model import DraftModel
from specplug.draft_model.pairing import TokenizerPair
from specplug.errors import SettingsError
from specplug.interfaces import PluginContext
from specplug.text.tokenizers import load_tokenizer
from specplug.types.caps import Distribution
from specplug_crosstok.options import CrossTokSettings


def load_model(
    context: PluginContext, options: CrossTokSettings, device: torch.device
) -> tuple[DraftModel, TokenizerPair]:
    """Load the draft model on a device, and compare its tokenizer with the target's.

    Raises:
        SettingsError: no model is named, or one of the tokenizers cannot be translated.
        PluginError: the model cannot be loaded.
    """
    name = named(options)
    max_texts = min(options.max_requests, context.max_slots)
    dtype = None if options.dtype == "auto" else getattr(torch, options.dtype)
    model = DraftModel(name, max_texts=max_texts, max_length=options.max_context, device=device, dtype=dtype)
    own = load_tokenizer(name).library
    return model, TokenizerPair.of(context.target_tokenizer, own, context.vocab_size, model.vocab_size)


def named(options: CrossTokSettings) -> str:
    """Return the name of the draft model.

    Raises:
        SettingsError: there is none.
    """
    if not options.model:
        raise SettingsError.build(
            "no draft model is named",
            who="proposer 'crosstok'",
            found="options.crosstok.model is empty",
            expected="a folder, or a model id at Hugging Face",
            remedy='Set {"options": {"crosstok": {"model": "..."}}}',
        )
    return options.model


def common_ids(pair: TokenizerPair, draft_vocab: int, target_vocab: int) -> tuple[npt.NDArray[np.int32], Tensor]:
    """Return the target's id of each of the draft's ids, or -1, and the draft's ids that have one, [Vd] int64."""
    to_target = pair.intersection.to_target[:draft_vocab]
    to_target = np.where(to_target < target_vocab, to_target, -1).astype(np.int32)
    return to_target, torch.from_numpy(np.flatnonzero(to_target >= 0))


def check_device(name: str, device: torch.device) -> None:
    """Check that the setting `device` does not name another device than that of the batches.

    Raises:
        SettingsError: it does.
    """
    if name != "auto" and device_of(name) != device and name != device.type:
        raise SettingsError.build(
            "the draft model runs on the engine's device",
            who="proposer 'crosstok'",
            found=f"options.crosstok.device is {name!r}",
            expected=f"auto or {str(device)!r}",
            remedy="Leave out options.crosstok.device",
        )


def device_of(name: str) -> torch.device:
    """Return the device that the setting `device` names.

    Raises:
        SettingsError: there is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise SettingsError.build(
            "no such device",
            who="proposer 'crosstok'",
            found=f"options.crosstok.device is {name!r}, and there are {torch.cuda.device_count()} GPUs",
            expected="auto, cpu, cuda, or cuda:N",
        )
    return device


_TEMPORARIES = 64 << 20  # bytes of activations and logits of a pass
_GRAPHS = 256 << 20  # bytes of captured graphs, and of the tables of two vocabularies
_PER_LOGIT = 40  # bytes of the temporaries of a choice: the logits, three distributions and sums in float64


def declared(context: PluginContext) -> int:
    """Return the most bytes that weights, caches and temporaries take on the context's device.

    For batches on the host, a model on a GPU takes none of these; there all of it is allocated before the engine
    measures its memory.

    Raises:
        SettingsError: no model is named.
        PluginError: its configuration cannot be read.
    """
    options: CrossTokSettings = context.options or CrossTokSettings()
    facts = read_facts(named(options))
    on_device = context.device.type == "cuda"
    if not on_device and device_of(options.device).type == "cuda":
        return 0
    checkpoints = facts.dtype if on_device else torch.float32
    size = (checkpoints if options.dtype == "auto" else getattr(torch, options.dtype)).itemsize
    parameters = count_parameters(facts)
    num_weights = parameters.dense + parameters.embedding + parameters.experts * parameters.expert
    max_length = min(options.max_context, facts.max_length or options.max_context) + 1
    max_rows = min(options.max_requests, context.max_slots)
    weights_and_cache = size * (num_weights + max_rows * max_length * (cache_elements(facts) or 0))
    of_drafts = _of_drafts(context, max_rows, facts.vocab_size)
    return weights_and_cache + _TEMPORARIES + of_drafts + (_GRAPHS if on_device else 0)


def _of_drafts(context: PluginContext, max_rows: int, draft_vocab: int) -> int:
    """Return the bytes of choices, and of the logits that drafts are drawn from."""
    states = context.caps.draft_input is not Distribution.ONE_HOT
    stated = 2 * (context.caps.max_draft_length + 1) * min(draft_vocab, context.vocab_size) * torch.float32.itemsize
    return max_rows * (_PER_LOGIT * draft_vocab + states * stated)
