"""Proposers receive how much of a text the client saw, however a request ends, and which requests may share state."""

from __future__ import annotations

from typing import Any

from specplug.requests.clients import isolation_key
from tests.engines import ends
from tests.engines.vllm import inside
from tests.engines.vllm.referee import kind, prompts, reported, zoo
from tests.engines.vllm.watching import plain_name

__all__ = ["kind", "zoo"]

PROMPTS = [list(prompt) for prompt in prompts()]


def requested(llm: Any, requests: list[dict[str, Any]], aborts: dict[str, int] | None = None) -> dict[str, Any]:
    """Run requests; return by id the newest output for its client, and the events that proposer `recorder` received.

    Args:
        requests: "id", "prompt" and "params" each.
        aborts: by id, how many tokens the client waits for before it leaves.
    """
    from specplug_testkit.recorder import RECORDS

    engine, outputs, leaving = llm.llm_engine, {}, dict(aborts or {})
    inside.generate(llm, [PROMPTS[3]], {"max_tokens": 2})
    RECORDS.clear()
    for request in requests:
        engine.add_request(request["id"], request["prompt"], inside.sampling(request["params"]))
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs[output.request_id] = inside.described(output.outputs[0])
            if len(outputs[output.request_id]["token_ids"]) >= leaving.get(output.request_id, 1 << 30):
                del leaving[output.request_id]
                engine.abort_request([output.request_id])
    inside.generate(llm, [PROMPTS[3]], {"max_tokens": 2})  # with whose first step the last end is told
    records = [{**record, **_plain(record)} for record in RECORDS]
    return {"outputs": outputs, "records": records}


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if record.get("request_id"):
        found["request_id"] = plain_name(record["request_id"])
    if record.get("request_ids"):
        found["request_ids"] = [plain_name(name) for name in record["request_ids"]]
    return found


def endings(records: list[dict[str, Any]]) -> dict[str, tuple[str, int | None]]:
    """Return by request the event of its end that proposers received."""
    ended = [record for record in records if record.get("kind") in ("FINISHED", "ABORTED")]
    return {record["request_id"]: (record["kind"], record["visible"]) for record in ended}


def request_of(case: ends.Case) -> dict[str, Any]:
    """Return a request whose drafts are right and continue after its end."""
    params = {
        "max_tokens": case["most"],
        "min_tokens": case["least"],
        "stop_token_ids": case["ids"],
        "stop": case["strings"],
        "include_stop_str_in_output": case["keep"],
        "ignore_eos": not case["ends"],
    }
    return {"id": case["name"], "prompt": case["prompt"], "params": {**params, **reported(case["answer"])}}


def test_what_the_client_saw(zoo):
    """With ends of every sort and right drafts after each, proposers hold more of the text than they may remember."""
    cases = ends.cases()
    found = zoo.call(requested, requests=[request_of(case) for case in cases])
    ended, longer = endings(found["records"]), 0
    for case in cases:
        output = found["outputs"][case["name"]]
        if case["most"] == 1:  # nothing could be drafted: proposers are not told of it
            assert case["name"] not in ended
            continue
        text = ends.newest_text(found["records"], case["name"])
        assert ended[case["name"]] == ("FINISHED", ends.seen(case, output)), case["name"]
        assert text[: len(case["prompt"])] == case["prompt"]
        visible = ended[case["name"]][1]
        assert text[len(case["prompt"]) : visible] == output["token_ids"][: visible - len(case["prompt"])]
        longer += len(text) > visible
    assert longer > len(cases) // 2, "texts did not go on behind their ends, so little was tried"
    reasons = {type(output["stop_reason"]) for output in found["outputs"].values()}
    assert reasons == {type(None), int, str}, "some sort of end is missing"


def test_a_client_that_leaves(zoo):
    """It saw at most the tokens emitted until then; with stop strings the number is unknown."""
    leaving = [case for case in ends.cases() if case["name"] in ("length 3", "never 3", "end of text 17")]
    requests = [request_of({**case, "most": ends.LONG, "ends": False}) for case in leaving]
    found = zoo.call(requested, requests=requests, aborts={case["name"]: 3 for case in leaving})
    ended = endings(found["records"])
    for case in leaving:
        got = len(case["prompt"]) + len(found["outputs"][case["name"]]["token_ids"])
        kind, visible = ended[case["name"]]
        assert kind == "ABORTED"
        if case["strings"]:
            assert visible is None
        else:
            text = ends.newest_text(found["records"], case["name"])
            assert got <= visible <= len(text)
            assert visible < len(case["prompt"]) + ends.LONG


def isolated(llm: Any, salts: list[str | None], tenants: list[str | None]) -> list[str]:
    """Return the isolation keys of requests, each with a cache salt or none and a tenant or none."""
    from specplug_testkit.recorder import RECORDS

    RECORDS.clear()
    for number, (salt, tenant) in enumerate(zip(salts, tenants, strict=True)):
        prompt = {"prompt_token_ids": PROMPTS[3], **({"cache_salt": salt} if salt else {})}
        extra = {"specplug": {"tenant": tenant}} if tenant else None
        params = inside.sampling({"max_tokens": 2, "extra_args": extra})
        llm.llm_engine.add_request(f"isolated {number}", prompt, params)
        while llm.llm_engine.has_unfinished_requests():
            llm.llm_engine.step()
    started = [record for record in RECORDS if record.get("kind") == "STARTED"]
    return [record["request"]["isolation_key"] for record in started]


def test_who_may_share(zoo):
    salts, tenants = [None, "salt", "salt", None], [None, None, "me", "salt"]
    keys = zoo.call(isolated, salts=salts, tenants=tenants)
    expected = [isolation_key(tenant, (salt,)) for salt, tenant in zip(salts, tenants, strict=True)]
    assert keys == expected
    assert len(set(keys)) == len(keys)
