"""What both forms of the proposer `crosstok` begin with: the draft model, and its tokenizer beside the target's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.draft_model.model import DraftModel
from specplug.draft_model.pairing import TokenizerPair
from specplug.errors import SettingsError
from specplug.interfaces import PluginContext
from specplug.text.loading import load_tokenizer
from specplug_crosstok.options import CrossTokSettings


def load_model(
    context: PluginContext, options: CrossTokSettings, device: torch.device
) -> tuple[DraftModel, TokenizerPair]:
    """Load the draft model on a device, and compare its tokenizer with the target's.

    Raises:
        SettingsError: no model is named, or one of the tokenizers cannot be translated.
        PluginError: the model cannot be loaded.
    """
    if not options.model:
        raise SettingsError.build(
            "no draft model is named",
            who="proposer 'crosstok'",
            found="options.crosstok.model is empty",
            expected="a folder, or a model id at Hugging Face",
            remedy='Set {"options": {"crosstok": {"model": "..."}}}',
        )
    max_texts = min(options.max_requests, context.max_slots)
    dtype = None if options.dtype == "auto" else getattr(torch, options.dtype)
    model = DraftModel(options.model, max_texts=max_texts, max_length=options.max_context, device=device, dtype=dtype)
    own = load_tokenizer(options.model).library
    return model, TokenizerPair.of(context.target_tokenizer, own, context.vocab_size, model.vocab_size)


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
