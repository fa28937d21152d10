"""Seams of grammars, which are applied to drafts in the scheduler's process."""

from __future__ import annotations

from specplug.seams.seam import Seam, seam

GRAMMAR: tuple[Seam, ...] = (
    seam(
        "sglang.srt.speculative.spec_utils:GrammarTree.from_device",
        "worker",
        takes="retrieve_next_token retrieve_next_sibling draft_token",
    ),
    seam(
        "sglang.srt.speculative.spec_utils:build_grammar_vocab_mask",
        "worker",
        named="barrier device reqs sampling_info tree",
    ),
    seam(
        "sglang.srt.constrained.base_grammar_backend:BaseGrammarObject",
        "worker",
        holds="accept_token fill_vocab_mask is_terminated rollback try_jump_forward",
    ),
    seam("sglang.srt.constrained.base_grammar_backend:BaseGrammarObject.accept_token", "worker", takes="token"),
    seam(
        "sglang.srt.constrained.base_grammar_backend:BaseGrammarObject.fill_vocab_mask",
        "worker",
        takes="vocab_mask idx",
    ),
    seam("sglang.srt.constrained.base_grammar_backend:BaseGrammarObject.rollback", "worker", takes="k"),
    seam("sglang.srt.constrained.xgrammar_backend:XGrammarGrammar", "worker", holds="accepted_tokens matcher"),
    seam("sglang.srt.constrained.xgrammar_backend:XGrammarGrammar.rollback", "worker", takes="k"),
    seam("sglang.srt.constrained.reasoner_grammar_backend:ReasonerGrammarObject", "worker", holds="grammar"),
)
