"""The examples of LlamaIndex and LangChain send what they retrieved, each request its own, and eight texts at most.

The frameworks are the real ones; a stand-in records their requests.  `tests.engines.suites.examples` has real servers.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.embedding_server import Recorded, recording
from tests.engines.examples import command

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))
import rag_client  # noqa: E402
import rag_langchain  # noqa: E402
import rag_llamaindex  # noqa: E402

sys.path.remove(str(ROOT / "examples"))

TOPICS = ("apple", "birch", "cedar", "dogwood")
TEXTS = [f"The {topic} number {number} grows in a garden of its own." for topic in TOPICS for number in range(12)]
FIELDS = rag_client.FIELDS
EXTRA = {"top_k": 5, "vllm_xargs": {"specplug_tenant": "acme"}}
"""What the user's own requests say."""


@pytest.fixture
def server():
    with recording() as found:
        yield found


def references(chat: dict, engine: str = "vllm") -> list[str]:
    return list(chat[FIELDS[engine]]["specplug_references"])


def prompt(chat: dict) -> str:
    return str(chat["messages"][-1]["content"])


def check(chats: list[dict], questions: list[str]) -> None:
    """Each request brought what its own question retrieves, and its prompt the best of that."""
    assert len(chats) == len(questions)
    assert sorted(one for one in questions for chat in chats if one in prompt(chat)) == sorted(questions)
    for chat in chats:
        (topic,) = {topic for topic in TOPICS if topic in prompt(chat)}
        sent = references(chat)
        assert len(sent) == rag_client.MOST == len({text for text in sent if topic in text})
        assert [text in prompt(chat) for text in sent] == [True] + 7 * [False]
        assert (chat["top_k"], chat["vllm_xargs"]["specplug_tenant"]) == (5, "acme")


@pytest.mark.parametrize(("name", "engine"), [("rag_llamaindex.py", "sglang"), ("rag_langchain.py", "vllm")])
def test_the_program_sends_eight_passages_and_prompts_with_the_best(
    name, engine, server, tmp_path, monkeypatch, capsys
):
    (tmp_path / "trees.md").write_text("\n\n".join(TEXTS))
    values = {"URL": server.url, "EMBEDDINGS_URL": server.url, "FOLDER": str(tmp_path)}
    words = command(name, {**values, "How is a draft cut to its budget?": "Where does cedar number 3 grow?"})
    monkeypatch.setattr(sys, "argv", [*words[1:], "--engine", engine])
    sys.modules[name.removesuffix(".py")].main()
    assert capsys.readouterr().out.splitlines() == ["yes", "---", f"8 passages found; {rag_client.counted((0, 0, 0))}"]
    (chat,) = server.chats
    assert FIELDS.keys() - {engine} == {other for other, field in FIELDS.items() if field not in chat}
    sent = references(chat, engine)
    assert sent[0] == "The cedar number 3 grows in a garden of its own."
    assert len(sent) == 8
    assert [text in prompt(chat) for text in sent] == [True] + 7 * [False]


class TestLlamaIndex:
    @pytest.fixture
    def engine(self, server: Recorded):
        from llama_index.core import VectorStoreIndex
        from llama_index.core.schema import TextNode
        from llama_index.embeddings.openai_like import OpenAILikeEmbedding

        embedder = OpenAILikeEmbedding(model_name="words", api_base=f"{server.url}/v1", api_key="none")
        model = rag_llamaindex.ReferringModel(
            model="m",
            api_base=f"{server.url}/v1",
            api_key="none",
            is_chat_model=True,
            max_retries=0,
            additional_kwargs={"extra_body": EXTRA},
        )
        index = VectorStoreIndex([TextNode(text=text) for text in TEXTS], embed_model=embedder)
        return index.as_query_engine(
            llm=model, similarity_top_k=10, node_postprocessors=[rag_llamaindex.SendReferences()]
        )

    QUESTIONS = [f"Where is the {topic}?" for topic in TOPICS]  # noqa: RUF012

    def test_threads_do_not_mix_up_their_passages(self, engine, server):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(engine.query, self.QUESTIONS))
        check(server.chats, self.QUESTIONS)

    def test_tasks_do_not_mix_up_their_passages(self, engine, server):
        async def query() -> None:
            await asyncio.gather(*map(engine.aquery, self.QUESTIONS))

        asyncio.run(query())
        check(server.chats, self.QUESTIONS)


class TestLangChain:
    QUESTIONS = TestLlamaIndex.QUESTIONS

    @pytest.fixture
    def model(self, server):
        return rag_langchain.ChatOpenAI(
            model="m", base_url=f"{server.url}/v1", api_key="none", max_retries=0, extra_body=EXTRA
        )

    @pytest.fixture
    def retriever(self, server):
        embedder = rag_langchain.OpenAIEmbeddings(
            model="words", base_url=f"{server.url}/v1", api_key="none", check_embedding_ctx_length=False
        )
        store = rag_langchain.InMemoryVectorStore.from_texts(TEXTS, embedder)
        return store.as_retriever(search_kwargs={"k": 10})

    @pytest.fixture
    def answer(self, model, retriever):
        template = rag_langchain.PromptTemplate.from_template("{passage}\n{question}")
        return rag_langchain.answering(model, retriever, template, "vllm")

    def test_batches_do_not_mix_up_their_passages(self, answer, server):
        assert answer.batch(self.QUESTIONS) == ["yes"] * 4
        check(server.chats, self.QUESTIONS)

    def test_tasks_do_not_mix_up_their_passages(self, answer, server):
        assert asyncio.run(answer.abatch(self.QUESTIONS)) == ["yes"] * 4
        check(server.chats, self.QUESTIONS)

    @pytest.mark.parametrize("call", ["invoke", "ainvoke"])
    def test_an_agents_answer_brings_what_its_tool_found(self, call, model, retriever, server):
        from langchain.agents import create_agent
        from langchain_core.tools import create_retriever_tool

        tool = create_retriever_tool(retriever, "search", "finds trees", response_format="content_and_artifact")
        agent = create_agent(model, [tool], middleware=[rag_langchain.SendReferences()])
        given = {"messages": [("user", self.QUESTIONS[1])]}
        state = asyncio.run(agent.ainvoke(given)) if call == "ainvoke" else agent.invoke(given)
        assert state["messages"][-1].text == "yes"
        before, after = server.chats
        assert references(before) == []
        assert len(references(after)) == 8
        assert all("birch" in text for text in references(after))
        assert (after["top_k"], after["vllm_xargs"]["specplug_tenant"]) == (5, "acme")

    def test_an_agents_settings_are_kept_and_other_artifacts_ignored(self, model):
        document = rag_langchain.Document("birch")
        artifacts = [{"rows": 2}, [document, "text"], np.zeros(2), None]
        messages = [rag_langchain.ToolMessage("found", tool_call_id="1", artifact=each) for each in artifacts]
        request = rag_langchain.ModelRequest(
            model=model, messages=messages, model_settings={"extra_body": {"top_k": 7}}
        )
        sent = rag_langchain.SendReferences().wrap_model_call(request, lambda request: request.model_settings)
        assert sent == {"extra_body": {"top_k": 7, "vllm_xargs": {"specplug_references": ["birch"]}}}
