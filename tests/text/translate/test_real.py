"""The tokenizers of real models, whose vocabularies have gaps, added tokens and others' names."""

from __future__ import annotations

from specplug.text.translate.tables import intersect, match_controls
from tests.real_models import needs_models
from tests.text.translate.tools import REAL, vocabulary

pytestmark = needs_models


def test_what_they_cannot_spell_and_what_was_added():
    smollm2, gemma3 = map(vocabulary, REAL)
    assert [byte for byte in range(0xC0) if smollm2.byte_ids[byte] < 0] == [0x04, 0x06, 0x13, 0x14, 0x16, 0x1D]
    assert (smollm2.byte_ids.count(-1), gemma3.byte_ids.count(-1)) == (21, 0)
    assert (smollm2.alters_text, gemma3.alters_text) == (False, False)
    assert not {"<h1>", "</s>", "\n\n"} & set(gemma3.controls.values())
    assert gemma3.spells(gemma3.encode("a</s>\n\nb"), "a</s>\n\nb")
    names = {text: token for token, text in gemma3.controls.items()}
    others = {text: token for token, text in smollm2.controls.items()}
    controls = match_controls(smollm2, gemma3).to_draft
    assert controls[others["<|im_start|>"]] == names["<start_of_turn>"]
    assert controls[others["<|im_end|>"]] == names["<end_of_turn>"]
    assert controls[others["<|endoftext|>"]] == names["<eos>"]


def test_common_ids_have_the_same_bytes() -> None:
    target, draft = map(vocabulary, ("gemma3", "smollm2"))
    shared = intersect(target, draft)
    assert shared.of_draft > 90
    for token, to in enumerate(shared.to_target.tolist()):
        if to >= 0 and token not in draft.controls:
            assert draft.pieces[token] == target.pieces[to]
