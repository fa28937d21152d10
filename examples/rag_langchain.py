"""LangChain runnable, and middleware for agents, that send what was retrieved as reference texts.

    python examples/rag_langchain.py URL MODEL EMBEDDINGS_URL EMBEDDER FOLDER "How is a draft cut to its budget?"

`pip install langchain langchain-openai`.  The paragraphs of a folder of texts go into a vector store, with vectors by
EMBEDDER from any OpenAI-compatible server.  Of the eight passages that a question retrieves the best one goes into the
prompt, and all become references of the request, which speed up the answer and never change it.  The server is vLLM's
or SGLang's own, started with specplug (`--engine sglang`).

A callback sees requests and cannot change them.  `bind` can, for one call, and middleware can, for an agent.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import rag_client
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.documents import Document
from langchain_core.messages import ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, chain
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings


def answering(model: ChatOpenAI, retriever: BaseRetriever, prompt: PromptTemplate, engine: str) -> Runnable[str, str]:
    """Return a runnable from questions to answers; the prompt has the best passage, and the request all of them."""

    @chain
    def answer(question: str) -> Runnable[str, str]:
        found = [document.page_content for document in retriever.invoke(question)]
        bound = model.bind(extra_body=rag_client.references(engine, found, model.extra_body))
        return prompt.partial(passage=found[0]) | bound | StrOutputParser()

    return answer


class SendReferences(AgentMiddleware):
    """Sends the documents that an agent's tools found, newest first: tools with `content_and_artifact` keep them."""

    def __init__(self, engine: str = "vllm") -> None:
        super().__init__()
        self.engine = engine

    def _referring(self, request: ModelRequest) -> ModelRequest:
        tools = [message for message in reversed(request.messages) if isinstance(message, ToolMessage)]
        kept = [each for message in tools if isinstance(message.artifact, list) for each in message.artifact]
        found = [each.page_content for each in kept if isinstance(each, Document)]
        given = request.model_settings.get("extra_body", getattr(request.model, "extra_body", None))
        extra = rag_client.references(self.engine, found, given)
        return request.override(model_settings={**request.model_settings, "extra_body": extra})

    def wrap_model_call(self, request: ModelRequest, handler: Callable[[ModelRequest], ModelResponse]) -> ModelResponse:
        """Send a request of an agent."""
        return handler(self._referring(request))

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        """Send a request of an agent in asyncio."""
        return await handler(self._referring(request))


def main() -> None:
    """Index the folder, ask the question, and print the answer and the number of steps."""
    given = rag_client.options(__doc__ or "", "url", "model", "embeddings_url", "embedder", "folder", "question")
    served: dict[str, Any] = {"api_key": "none", "check_embedding_ctx_length": False}  # texts, not ids of OpenAI's
    embedder = OpenAIEmbeddings(model=given.embedder, base_url=f"{given.embeddings_url}/v1", **served)
    store = InMemoryVectorStore.from_texts(rag_client.read(Path(given.folder)), embedder)
    retriever = store.as_retriever(search_kwargs={"k": rag_client.MOST})
    model = ChatOpenAI(model=given.model, base_url=f"{given.url}/v1", api_key="none", temperature=0, max_tokens=200)
    answer = answering(model, retriever, PromptTemplate.from_template(given.template), given.engine)
    before = rag_client.counts(given.url)
    rag_client.report(given.url, before, answer.invoke(given.question), retriever.invoke(given.question))


if __name__ == "__main__":
    main()
