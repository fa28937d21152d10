"""Corpora that a server drafts from: changed by other processes and over its own routes, while it serves.

Inherit `CorporaSuite` and name the engine.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.corpus.documents import Document
from specplug.corpus.store import Store
from specplug.text.fingerprint import fingerprint
from tests.corpus.tools import overwrite
from tests.engines.plain import greedy, prompts, tokenizer
from tests.engines.server import Answer, Server
from tests.engines.suites.operations import KEY, ask

MAX_TOKENS = 40
POLL_SECONDS = 0.05
SOURCE = "retrieval/corpus"
TORN = "torn"
"""A tenant whose one segment was cut off before the server started."""


@functools.cache
def answers() -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return numbers of prompts, and their answers, that say little that the prompts do not."""
    found = []
    for number, prompt in enumerate(prompts()[:8]):
        ids = tuple(greedy(prompt, MAX_TOKENS)["token_ids"])
        seen = set(itertools.pairwise(prompt))
        new = sum(pair not in seen for pair in itertools.pairwise(ids))
        found.append((-new, number, ids))
    return tuple((number, ids) for _, number, ids in sorted(found)[:3])


def document(ids: Sequence[int], name: str = "answer") -> Document:
    return Document(name, np.array(ids, np.int32))


def settings(root: Path) -> dict[str, Any]:
    corpora = {"store": str(root), "poll_seconds": POLL_SECONDS, "max_tokens": 5000, "max_request_bytes": 20000}
    return {"proposer": "retrieval", "policy": "fixed", "corpora": corpora}


def worker(server: Server) -> dict[str, Any]:
    answer = ask(server, "/specplug/status")
    assert answer.code == 200, answer.body
    [found] = answer.json["engines"][0]["workers"]
    return found


def wait_for(server: Server, holds: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until the worker has seen a change of its store."""
    deadline = time.monotonic() + 60
    while not holds(worker(server)["details"]["retrieval"]["tenants"]):
        assert time.monotonic() < deadline, worker(server)["details"]
        time.sleep(POLL_SECONDS)


def send(server: Server, method: str, path: str = "", body: Any = None) -> Answer:
    """Ask `/specplug/corpora`, as `Server.ask` does."""
    return server.ask(f"/specplug/corpora{path}", body, {"Authorization": f"Bearer {KEY}"}, method)


def listed(server: Server, query: str = "") -> dict[str, dict[str, int]]:
    """Return the tokens of all corpora, by tenant."""
    answer = send(server, "GET", query)
    assert answer.code == 200, answer.body
    reported = answer.json["tenants"]
    return {
        tenant: {name: own["tokens"] for name, own in had["corpora"].items()}
        for tenant, had in reported.items()
        if tenant != TORN
    }


class CorporaSuite:
    """The engine's tests give the fixture `started`, a server with `settings(root)` and the API key `KEY`."""

    @staticmethod
    def ids(server: Server, prompt: list[int], **stated: Any) -> list[int]:
        """Return the greedy answer to a prompt with these fields of specplug's."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    def root(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A store as it is when the server starts: one tenant's is torn."""
        root = tmp_path_factory.mktemp("corpora") / "store"
        Store.create(root, fingerprint(tokenizer())).add("old", [document(range(100, 120))], tenant=TORN)
        [segment] = root.rglob("*.safetensors")
        overwrite(segment, segment.read_bytes()[:-30])
        return root

    @pytest.fixture
    def server(self, started: Server, root: Path) -> Iterator[Server]:
        """The server; after each test its store is emptied, except for torn segments."""
        yield started
        for info in Store(root).list():
            if info.tenant != TORN:
                Store(root).remove(info.name, tenant=info.tenant)
        wait_for(started, lambda tenants: set(tenants) <= {TORN})
        assert worker(started)["metrics"]["faults"] == {}

    def complete(self, server: Server, which: int, **stated: Any) -> None:
        """Send a prompt, and require the plain model's answer.  No response is stored, so that only corpora help."""
        number, ids = answers()[which]
        assert tuple(self.ids(server, list(prompts()[number]), store=False, **stated)) == ids

    def counted(self, server: Server, which: int, **stated: Any) -> dict[str, Any]:
        """Send a prompt; return what was accepted meanwhile, by source, and "tau"."""
        before = worker(server)["metrics"]
        self.complete(server, which, **stated)
        after = worker(server)["metrics"]
        found = {
            name.removeprefix("retrieval/"): count["accepted"] - before["by_source"][name]["accepted"]
            for name, count in after["by_source"].items()
        }
        emitted, steps = (after["total"][key] - before["total"][key] for key in ("emitted", "target_steps"))
        return {**found, "tau": emitted / steps}

    def test_an_answer_that_a_corpus_holds_is_drafted_from_it(self, server, root):
        plain = self.counted(server, 0)
        assert plain["corpus"] == 0
        Store(root).add("answers", [document(answers()[0][1])])
        wait_for(server, lambda tenants: "answers" in tenants.get("", {}))
        helped = self.counted(server, 0)
        assert helped["corpus"] > 0
        assert helped["tau"] > 1.2 * plain["tau"]
        Store(root).remove("answers")
        wait_for(server, lambda tenants: "" not in tenants)
        assert self.counted(server, 0)["corpus"] == 0

    def test_tenants_do_not_see_each_others_corpora(self, server, root):
        for tenant, which in (("a", 0), ("b", 1)):
            Store(root).add("answers", [document(answers()[which][1])], tenant=tenant)
        wait_for(server, lambda tenants: {"a", "b"} <= set(tenants))
        assert self.counted(server, 0)["corpus"] == 0
        assert self.counted(server, 0, tenant="b", corpora="answers", documents="answer")["corpus"] == 0
        assert self.counted(server, 0, tenant="a")["corpus"] > 0

    def test_a_request_names_documents_and_corpora(self, server, root):
        Store(root).add("mixed", [document(answers()[0][1], "mine.txt"), document(answers()[1][1], "other.txt")])
        Store(root).add("aside", [document(range(200, 240))])
        wait_for(server, lambda tenants: {"mixed", "aside"} <= set(tenants.get("", ())))
        assert self.counted(server, 0, corpora=["mixed"])["corpus"] > 0
        for named in ("mine.txt", {"name": "mine.txt", "corpus": "mixed"}):
            found = self.counted(server, 0, documents=named)
            assert found["reference"] > 0
            assert found["corpus"] == 0  # a reference comes first where both say the same
        unknown = worker(server)["details"]["retrieval"]["unknown_documents"]
        assert self.counted(server, 0, documents={"name": "mine.txt", "corpus": "aside"}, corpora="none")["corpus"] > 0
        assert worker(server)["details"]["retrieval"]["unknown_documents"] == unknown + 1

    def test_routes_add_list_extend_and_remove(self, server, root):
        ids = answers()[0][1]
        text = "def area(r):\n    return 3.14 * r * r\n"
        own = len(tokenizer().encode(text, add_special_tokens=False))
        stated = {"name": "notes", "documents": [{"name": "ids", "token_ids": list(ids)}, text]}
        added = {"name": "notes", "tenant": "", "documents": 2, "tokens": len(ids) + own, "empty": 0}
        added |= {"present": 0, "same_name": 0}
        assert (send(server, "POST", body=stated).json, listed(server)) == (added, {"": {"notes": len(ids) + own}})
        wait_for(server, lambda tenants: "notes" in tenants.get("", {}))
        assert self.counted(server, 0)["corpus"] > 0
        assert send(server, "POST", body=stated).code == 409
        assert send(server, "POST", body={"name": "notes", "documents": [text], "extend": True}).json["tokens"] == own
        assert send(server, "POST", body={**stated, "tenant": "a/../b"}).json["tenant"] == "a/../b"
        assert listed(server, "?tenant=a%2F..%2Fb") == {"a/../b": {"notes": len(ids) + own}}
        assert send(server, "DELETE", "/notes?document=ids").json["tokens"] == len(ids)
        assert listed(server)[""] == {"notes": 2 * own}
        assert send(server, "DELETE", "/notes?document=ids").code == 400
        for mistake in ("?documents=ids", "?tennant=a", "?tenant=a&tenant=b"):
            assert send(server, "DELETE", f"/notes{mistake}").code == 400
        assert send(server, "DELETE", "/notes").json["documents"] == 2
        assert send(server, "DELETE", "/notes").code == 404
        assert send(server, "DELETE", "/notes?tenant=a%2F..%2Fb").code == 200
        assert listed(server) == {}
        assert {info.tenant for info in Store(root, fingerprint(tokenizer())).list()} == {TORN}

    @pytest.mark.parametrize(
        ("body", "status", "what"),
        [
            (b"{", 400, "the body is not JSON"),
            ({"name": "x", "documents": [{"token_ids": [10**6]}]}, 400, "token id outside the vocabulary"),
            (iter([b" " * 9000] * 3), 413, "corpora.max_request_bytes"),
        ],
    )
    def test_bad_orders_say_why_and_add_nothing(self, server, body, status, what):
        """The rest is tested without a server, in tests/operator/test_corpus_admin.py."""
        answer = send(server, "POST", body=body)
        assert (answer.code, listed(server)) == (status, {})
        assert what in answer.error

    def test_a_torn_segment_is_reported_and_the_rest_serves(self, server, root):
        [segment] = (root / "tenants").rglob("*.safetensors")
        for problems in (send(server, "GET").json["problems"], worker(server)["details"]["retrieval"]["problems"]):
            assert len(problems) == 1
            assert str(segment) in problems[0]
        self.complete(server, 1, tenant=TORN)
