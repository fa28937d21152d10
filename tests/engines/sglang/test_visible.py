"""Proposers receive how much of a text the client saw, however a request ends, and which requests may share state."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from specplug.requests.clients import isolation_key
from tests.engines import ends
from tests.engines.plain import prompts
from tests.engines.sglang import inside, watching
from tests.engines.sglang.test_lifecycle import tight

__all__ = ["tight"]

PROMPTS = [list(prompt) for prompt in prompts()]


def requested(engine: Any, requests: list[dict[str, Any]], aborts: dict[str, int] | None = None) -> dict[str, Any]:
    """Run requests at once; return by id what its client got, and the events that the proposer `recorder` received.

    Args:
        requests: "id", "prompt", "params" and maybe further arguments of `async_generate` under "more".
        aborts: by id, how many tokens the client waits for before it leaves.
    """
    leaving = dict(aborts or {})

    async def one(request: dict[str, Any]) -> dict[str, Any]:
        output: dict[str, Any] = {}
        params = {"temperature": 0.0, **request["params"]}
        stream = await engine.async_generate(
            input_ids=request["prompt"],
            sampling_params=params,
            rid=request["id"],
            stream=True,
            **request.get("more", {}),
        )
        async for output in stream:
            if output["meta_info"]["completion_tokens"] >= leaving.get(request["id"], 1 << 30):
                del leaving[request["id"]]
                engine.tokenizer_manager.abort_request(request["id"])
        return {**inside.described(output), "text": output["text"]}

    async def everyone() -> list[dict[str, Any]]:
        return await asyncio.gather(*map(one, requests))

    watching.call(engine, watching.begin)
    answers = engine.loop.run_until_complete(everyone())
    watching.settled(engine)
    records = watching.call(engine, watching.end)["records"]
    names = [request["id"] for request in requests]
    return {"outputs": dict(zip(names, answers, strict=True)), "records": records}


def endings(records: list[dict[str, Any]]) -> dict[str, tuple[str, int | None]]:
    """Return by request the event of its end that proposers received."""
    ended = [record for record in records if record.get("kind") in ("FINISHED", "ABORTED")]
    return {record["request_id"]: (record["kind"], record["visible"]) for record in ended}


def request_of(case: ends.Case) -> dict[str, Any]:
    """Return a request whose drafts are right and continue after its end."""
    fields = {"proposer": "oracle", "references": [{"token_ids": case["answer"]}]}
    params = {
        "max_new_tokens": case["most"],
        "stop_token_ids": case["ids"],
        "stop": case["strings"],
        "stop_regex": case.get("expressions", []),
        "no_stop_trim": case["keep"],
        "ignore_eos": not (case["ends"] or case["ids"]),  # of which SGLang ignores both or none
        "custom_params": {"specplug": fields},
    }
    return {"id": case["name"], "prompt": case["prompt"], "params": params}


def cases() -> list[ends.Case]:
    """Return the cases that SGLang knows, and its own: expressions, and the end's own name as a string."""
    found = [case for case in ends.cases() if not case["least"]]
    for case in [case for case in found if case["name"].startswith("string kept")]:
        string, place = case["strings"][0], case["name"].split()[-1]
        own = {**case, "strings": [], "keep": False}
        found.append({**own, "name": f"expression {place}", "expressions": [re.escape(string[:-1]) + "."]})
        word = re.findall("[a-z]{3,}", ends.decoded(case["answer"]))[2]
        found.append({**own, "name": f"plain expression {place}", "expressions": ["[a-z]{40}", word]})
    ending = next(case for case in found if case["ends"])
    return [*found, {**ending, "name": "special", "strings": ["<|end|>"]}]


def test_what_the_client_saw(tight):
    """With ends of every sort and right drafts after each, proposers hold more of the text than they may remember."""
    given = cases()
    found = tight.call(requested, requests=[request_of(case) for case in given])
    ended, longer, unshown = endings(found["records"]), 0, 0
    for case in given:
        output = found["outputs"][case["name"]]
        if case["most"] == 1:  # nobody drafts for a request that ends with its prompt's step
            assert ended[case["name"]] == ("FINISHED", ends.seen(case, output))
            continue
        text = ends.newest_text(found["records"], case["name"])
        kind, visible = ended[case["name"]]
        hidden = case["name"] == "special"  # what ended it has no text
        assert (kind, visible) == ("FINISHED", ends.seen(case, output) - hidden), case["name"]
        assert text[: len(case["prompt"])] == case["prompt"]
        shown, seen = text[len(case["prompt"]) : visible], output["token_ids"][: visible - len(case["prompt"])]
        # A last step with room for one token has no drafts, and what it brings is shown to nobody; nor is that of a
        # last step whose end SGLang finds before it schedules a further one, as it does now and then.
        by_length = output["finish_reason"] == "length" and shown == seen[:-1]
        assert shown == seen[: len(shown)], case["name"]
        unshown += shown != seen and not by_length
        longer += len(text) > visible
    assert longer > len(given) // 2, "texts did not go on behind their ends, so little was tried"
    assert unshown <= len(given) // 8, "proposers miss the ends of texts"
    reasons = {type(output["stop_reason"]) for output in found["outputs"].values()}
    assert reasons == {type(None), int, str}, "some sort of end is missing"


def test_a_client_that_leaves(tight):
    """It saw no more than was emitted until then."""
    leaving = [case for case in ends.cases() if case["name"] in ("length 3", "never 3", "end of text 17")]
    requests = [request_of({**case, "most": 400, "ends": False}) for case in leaving]
    found = tight.call(requested, requests=requests, aborts={case["name"]: 3 for case in leaving})
    ended = endings(found["records"])
    for case in leaving:
        output = found["outputs"][case["name"]]
        assert output["finish_reason"] == "abort"
        kind, visible = ended[case["name"]]
        assert kind == "ABORTED"
        text = ends.newest_text(found["records"], case["name"])
        assert len(case["prompt"]) + len(output["token_ids"]) <= visible <= len(text)
        assert visible < len(case["prompt"]) + 400


def test_who_may_share(tight):
    more: list[dict[str, Any]] = [{}, {"cache_salt": "salt"}, {"cache_salt": "salt"}, {}]
    tenants = [None, None, "me", "salt"]
    requests = []
    for number, (own, tenant) in enumerate(zip(more, tenants, strict=True)):
        custom = {"custom_params": {"specplug": {"tenant": tenant}}} if tenant else {}
        params = {"max_new_tokens": 2, **custom}
        requests.append({"id": f"shares {number}", "prompt": PROMPTS[3], "params": params, "more": own})
    records = tight.call(requested, requests=requests)["records"]
    started = {record["request_id"]: record["request"] for record in records if record.get("kind") == "STARTED"}
    keys = [started[request["id"]]["isolation_key"] for request in requests]
    expected = [isolation_key(tenant, (None, own.get("cache_salt"))) for own, tenant in zip(more, tenants, strict=True)]
    assert keys == expected
    assert len(set(keys)) == len(keys)
