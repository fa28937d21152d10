"""Proposers receive how much of a text the client saw, however a request ends, and which requests may share state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from specplug.requests.clients import isolation_key
from tests.engines import ends
from tests.engines.suites.lifecycle import PROMPTS, RECORDING
from tests.engines.suites.served import Records, Served, drafts_of


class VisibleSuite:
    """Attributes:
    how: what launches the engine.
    hears_of_one_token: whether proposers are told of requests that end with their prompt's step.
    lags: whether proposers may miss what a last step without drafts brings, and one in eight answers altogether.
    salted: what the isolation key holds beside the tenant, by the salt of the prefix cache.
    """

    how: ClassVar[dict[str, Any]] = {}
    hears_of_one_token: ClassVar[bool]
    lags: ClassVar[bool] = False

    @pytest.fixture(scope="class")
    def served(self, start: Callable[..., Served]) -> Served:
        return start(RECORDING, **{"name": "recording", **self.how})

    def cases(self) -> list[ends.Case]:
        """Return what ends requests on this engine."""
        return ends.cases()

    def salted(self, salt: str | None) -> tuple[Any, ...]:
        raise NotImplementedError

    def test_what_the_client_saw(self, served):
        """With ends of every sort and right drafts after each, proposers hold more text than they may remember."""
        cases = self.cases()
        found = served.recorded([request_of(case) for case in cases])
        ended = endings(found["records"])
        longer = 0
        missed = 0
        for case in cases:
            name = case["name"]
            output = found["outputs"][case["name"]]
            prompt = case["prompt"]
            seen = ends.seen(case, output) - case.get("hidden", 0)
            if case["most"] == 1:  # nothing could be drafted
                assert ended.get(name) == (("FINISHED", seen) if self.hears_of_one_token else None)
                continue
            text = ends.newest_text(found["records"], name)
            assert ended[name] == ("FINISHED", seen), name
            assert text[: len(prompt)] == prompt
            shown = text[len(prompt) : seen]
            emitted = output["token_ids"][: seen - len(prompt)]
            assert shown == emitted[: len(shown)], name
            by_length = self.lags and output["finish_reason"] == "length" and shown == emitted[:-1]
            missed += shown != emitted and not by_length
            longer += len(text) > seen
        assert longer > len(cases) // 2, "texts did not go on behind their ends, so little was tried"
        assert missed <= (len(cases) // 8 if self.lags else 0), "proposers miss the ends of texts"
        reasons = {type(output["stop_reason"]) for output in found["outputs"].values()}
        assert reasons == {type(None), int, str}, "some sort of end is missing"

    def test_a_client_that_leaves(self, served):
        """It saw at most the tokens emitted until then; with stop strings the number may be unknown."""
        leaving = [case for case in ends.cases() if case["name"] in ("length 3", "never 3", "end of text 17")]
        requests = [
            request_of({**case, "name": f"{case['name']} left", "most": 400, "ends": False}) for case in leaving
        ]
        found = served.recorded(requests, {request["id"]: [request["id"], 3] for request in requests})
        ended = endings(found["records"])
        for case, request in zip(leaving, requests, strict=True):
            output = found["outputs"][request["id"]]
            (kind, visible) = ended[request["id"]]
            assert (output["finish_reason"], kind) == ("abort", "ABORTED")
            if visible is None:
                assert case["strings"]
                continue
            text = ends.newest_text(found["records"], request["id"])
            assert len(case["prompt"]) + len(output["token_ids"]) <= visible <= len(text)
            assert visible < len(case["prompt"]) + 400

    def test_who_may_share(self, served):
        salts = [None, "salt", "salt", None]
        tenants = [None, None, "me", "salt"]
        requests = [
            {
                "id": f"shares {number}",
                "prompt": PROMPTS[3],
                "salt": salt,
                "params": {"max_tokens": 2, "specplug": {"tenant": tenant} if tenant else {}},
            }
            for number, (salt, tenant) in enumerate(zip(salts, tenants, strict=True))
        ]
        records = served.recorded(requests)["records"]
        started = {record["request_id"]: record["request"] for record in records if record.get("kind") == "STARTED"}
        keys = [started[request["id"]]["isolation_key"] for request in requests]
        assert keys == [isolation_key(tenant, self.salted(salt)) for salt, tenant in zip(salts, tenants, strict=True)]
        assert len(set(keys)) == len(keys)


def request_of(case: ends.Case) -> dict[str, Any]:
    """Return a request whose drafts are right and continue after its end."""
    params = {
        "max_tokens": case["most"],
        "min_tokens": case["least"],
        "stop_token_ids": case["ids"],
        "stop": case["strings"],
        "include_stop_str_in_output": case["keep"],
        "ignore_eos": not case["ends"],
        **case.get("more", {}),
    }
    return {"id": case["name"], "prompt": case["prompt"], "params": {**params, **drafts_of(case["answer"])}}


def endings(records: Records) -> dict[str, tuple[str, int | None]]:
    """Return by request the event of its end that proposers received."""
    ended = [record for record in records if record.get("kind") in ("FINISHED", "ABORTED")]
    return {record["request_id"]: (record["kind"], record["visible"]) for record in ended}
