"""The examples, and `specplug bench`, run as they stand against a real server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from specplug.tools.bench.run import LENGTHS
from specplug.tools.cli.app import app
from specplug.tools.demo.tasks import make_tasks
from tests.embedding_server import recording
from tests.engines.examples import command
from tests.engines.launch import ROOT
from tests.engines.server import Server

sys.path.insert(0, str(ROOT / "examples"))
import rag_client
import rag_tasks
import serving_demo

sys.path.remove(str(ROOT / "examples"))

WANTED = "Return the rows of a table that match a given query, in the order in which they were added."
TEXTS = (
    f"select: {WANTED}",
    "remove: Take the given rows out of a table and close the gaps that they leave behind.",
    "Connection: A connection to the server, which is closed when it is no longer used.",
)
TEMPLATE = "<|document|>{passage}<|quote|>{question}<|answer|>"
PLAIN = "no speculation"
ALONE = "specplug"
FED = ("specplug, with references", "specplug, corpus store", "corpus store, documents named")


class ExamplesSuite:
    """The engine's tests give the fixture `server`: specplug's ngram, as a user starts it.

    Attributes:
        engine: its name in the examples.
        environment: of a process that runs one.
    """

    engine: ClassVar[str]
    environment: ClassVar[Mapping[str, str]]

    def run(self, name: str, *arguments: str, values: Mapping[str, str] | None = None) -> str:
        """Return what an example writes: as its command stands in it, with values for placeholders, and arguments."""
        words = [*command(name, values), *arguments]
        done = subprocess.run(words, capture_output=True, text=True, timeout=400, env={**self.environment}, cwd=ROOT)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    def test_the_client_shows_what_it_says(self, server):
        values = {"http://localhost:8000": server.url, "MODEL": server.model}
        field = {"vllm": "vllm_xargs", "sglang": "custom_params"}[self.engine]
        lines = self.run("openai_client.py", field, values=values).splitlines()
        assert "    with open(path, flags) as file:" in lines
        assert "the same, streamed, with a prediction: True" in lines
        assert any(line.startswith("chat: ") for line in lines)
        (refusal,) = [line for line in lines if line.startswith("400: ")]
        assert "specplug_propser" in refusal
        assert "specplug_proposer" in refusal

    @pytest.mark.slow
    def test_the_offline_example_drafts(self):
        edited, record, summary = self.run(f"{self.engine}_offline.py").split("\n---\n")
        assert "open(path, flags)" in edited
        assert json.loads(record)["name"] == "read"
        tokens, steps = map(int, re.findall(r"(\d+) tokens in (\d+) steps", summary)[0])
        assert tokens > 2 * steps

    @pytest.mark.slow  # `make demo-vllm` and `make demo-sglang` run it
    def test_the_demo_compares_two_servers(self):
        report = json.loads(self.run(f"{self.engine}_demo.py", "--tasks", "1", "--json"))
        rows = report["rows"]
        kinds = ("edit", "quote", "json")
        assert [(row["task"], row["identical"]) for row in rows] == [(kind, 1) for kind in kinds for _ in "123"]
        for row in rows:
            if row["mode"] == PLAIN:
                assert row["acceptance_rate"] is None
            else:
                assert row["tokens_per_step"] > 1
        assert bool(report.get("remarks")) == (self.engine == "sglang"), "it says that stand-ins run"

    def test_the_retrieval_client_quotes_what_it_found(self, server, tmp_path):
        (tmp_path / "texts.md").write_text("\n\n".join(TEXTS))
        values = {"URL": server.url, "MODEL": server.model, "FOLDER": str(tmp_path)}
        values["How is a draft cut to its budget?"] = "Return the rows of"
        out = self.run("rag_client.py", "--engine", self.engine, "--template", TEMPLATE, values=values)
        answer, summary = out.strip().split("\n---\n")
        assert answer.strip() == WANTED
        found, tokens, steps, _ = map(int, re.findall(r"\d+", summary))
        assert (found, tokens > 2 * steps > 0) == (2, True), summary

    def test_a_framework_retrieves_what_is_drafted(self, server, tmp_path):
        """The prompt shows a record in another form than the vector store; without references the answer is the same.

        The client's environment is that of the core's tests, as no engine needs the frameworks.
        """
        name = {"vllm": "rag_langchain.py", "sglang": "rag_llamaindex.py"}[self.engine]
        [question] = rag_tasks.questions("records", 1)
        (tmp_path / "records.md").write_text("\n\n".join(question.references))
        chat = {"messages": [{"role": "user", "content": question.prompt}], "temperature": 0, "max_tokens": 200}
        opted_out = {rag_client.FIELDS[self.engine]: {"specplug_enabled": 0}}
        plain = server.ask("/v1/chat/completions", {"model": server.model, **chat, **opted_out}).json
        with recording() as embedding:
            values = {"URL": server.url, "MODEL": server.model, "FOLDER": str(tmp_path)}
            values |= {"EMBEDDINGS_URL": embedding.url, "How is a draft cut to its budget?": question.prompt}
            options = ["--engine", self.engine, "--template", "{question}"]
            words = [str(ROOT / ".venv" / "bin" / "python"), *command(name, values)[1:], *options]
            before = rag_client.counts(server.url)
            done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=ROOT)
        assert done.returncode == 0, done.stderr[-4000:]
        answer, summary = done.stdout.strip().split("\n---\n")
        assert answer == plain["choices"][0]["message"]["content"]
        tokens, steps, drafted = (now - then for now, then in zip(rag_client.counts(server.url), before, strict=True))
        assert summary == f"{len(question.references)} passages found; {rag_client.counted((tokens, steps, drafted))}"
        assert drafted > tokens / 4, summary

    def test_records_come_in_fewer_steps_with_references(self, server):
        """The texts are the same without and with them."""
        texts: list[list[str]] = []
        steps = []
        for is_referring in (False, True):
            before = rag_client.counts(server.url)
            stated = []
            for question in rag_tasks.questions("records", 3):
                extra = rag_client.references(self.engine, question.references if is_referring else ())
                extra[rag_client.FIELDS[self.engine]]["specplug_store"] = 0  # no response memory
                stated.append(serving_demo.ask(server, question.prompt, stream=False, extra=extra)[0])
            texts.append(stated)
            steps.append(rag_client.counts(server.url)[1] - before[1])
        assert texts[0] == texts[1]
        assert steps[0] > 1.25 * steps[1] > 0, steps

    @pytest.mark.slow  # three servers
    def test_the_retrieval_demo_shows_what_texts_gain(self):
        """Nothing differs, and texts that the prompt does not hold make steps longer."""
        values = {} if self.engine == "vllm" else {"vllm": self.engine}
        stated = json.loads(self.run("rag_demo.py", "--tasks", "2", "--json", values=values))
        assert stated["engine"] == self.engine
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for row in stated["rows"]:
            found.setdefault(row["task"], {})[row["mode"]] = row
            assert (row["identical"], row["tasks"]) == (2, 2), row
        assert [*found] == ["records", "answers", "quote"]
        for situation, arms in found.items():
            assert [*arms] == [PLAIN, ALONE, *FED]
            if situation != "quote":
                assert all(arms[fed]["tokens_per_step"] > 1.15 * arms[ALONE]["tokens_per_step"] for fed in FED), arms

    def test_bench_measures_both_modes_by_request(self, server: Server, tmp_path: Path):
        """Ten tasks, two of them in flight, and chats among them; nothing is switched or drafted from older memory."""
        tasks = make_tasks("edit", "held-out", 10, 7)
        lines: list[dict[str, Any]] = [{"prompt": task.prompt} for task in tasks[:6]]
        lines += [{"messages": [{"role": "user", "content": task.prompt}], "kind": "chats"} for task in tasks[6:]]
        path = tmp_path / "edits.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        arguments = ["--concurrency", "2", "--minutes", "5", "--json"]
        result = CliRunner().invoke(app, ["bench", server.url, str(path), *arguments])
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        (course,) = found["runs"]
        assert (found["texts"]["compared"], found["texts"]["identical"]) == (10, 10)
        assert found["errors"] == []
        assert course["ended"] in ("prompts", "decided")
        assert LENGTHS[0] <= course["max_tokens"] <= LENGTHS[1], "fitted to the minutes"
        first, *kinds = course["rows"]
        assert {row["kind"]: row["prompts"] for row in kinds} == {"edits": 6, "chats": 4}
        assert first["baseline"]["tokens_per_second"] > 0
        assert (first["baseline"]["tokens_per_step"], first["baseline"]["acceptance_rate"]) == (1.0, None)
        assert first["tested"]["tokens_per_step"] > 1.5  # edits are copies
        assert first["ratio"]["low"] <= first["ratio"]["value"] <= first["ratio"]["high"]
        (engine,) = json.loads(server.get("/specplug/status"))["engines"]
        assert engine["scheduler"]["control"]["mode"] == "on"
