"""The proposer `crosstok` on the engine's device keeps the contract and drafts what its model says."""

from __future__ import annotations

from specplug.demo import model_path
from specplug.testing.contract import ProposerContract
from specplug.testing.driver import Driver
from tests.draft_model.tools import greedy
from tests.proposers.crosstok_tools import OTHER, SAME, VOCAB, device_spec, encoded, options

CODE = "def add(first, second):\n    return first + second\n\n\ndef sub("
TEXTS = (encoded(CODE), encoded("Ünïcödé 天地 👍 is text"), encoded("x"))


class TestContractOfOneTokenizer(ProposerContract):
    spec, options, vocab_size, texts = device_spec(), options(SAME), VOCAB, TEXTS


class TestContractOfTwoTokenizers(ProposerContract):
    spec, options, vocab_size, texts = device_spec(), options(OTHER), VOCAB, TEXTS


def drafted(draft: str, ids: list[int], limit: int = 4, **more: object) -> list[int]:
    """Return the draft after a context, by a proposer that has seen no other."""
    with Driver(device_spec(), options(draft, **more), vocab_size=VOCAB, max_draft_length=16) as driver:
        driver.start("a", ids)
        return list(driver.step(limit).by_request()["a"].token_ids)


def test_with_one_tokenizer_the_draft_is_the_models_own_continuation() -> None:
    for ids in TEXTS:
        assert drafted(SAME, ids, 6) == greedy(str(model_path(SAME)), ids, 6)
