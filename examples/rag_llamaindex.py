"""LlamaIndex node postprocessor that sends what was retrieved as reference texts.

    python examples/rag_llamaindex.py URL MODEL EMBEDDINGS_URL EMBEDDER FOLDER "How is a draft cut to its budget?"

`pip install llama-index-llms-openai-like llama-index-embeddings-openai-like`.  The paragraphs of a folder of texts go
into a vector store, with vectors by EMBEDDER from any OpenAI-compatible server.  Of the eight passages that a question
retrieves the best one goes into the prompt, and all become references of the request, which speed up the answer and
never change it.  The server is vLLM's or SGLang's own, started with specplug (`--engine sglang`).

A postprocessor sees passages and no request, so it leaves them in a context variable, from which the model takes them:
each thread and each asyncio task has its own.
"""

from contextvars import ContextVar
from pathlib import Path
from typing import Any

import rag_client
from llama_index.core import PromptTemplate, VectorStoreIndex
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.llms.openai_like import OpenAILike

RETRIEVED: ContextVar[tuple[str, ...]] = ContextVar("RETRIEVED", default=())


class SendReferences(BaseNodePostprocessor):
    """Keeps the texts of all nodes for the request that follows, and returns the nodes that its prompt has room for."""

    in_prompt: int = 1

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        RETRIEVED.set(tuple(node.text for node in nodes))
        return nodes[: self.in_prompt]

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return self._postprocess_nodes(nodes, query_bundle)  # in this task; the base class would take a thread


class ReferringModel(OpenAILike):
    """OpenAI-compatible model whose requests bring what `SendReferences` has kept."""

    engine: str = "vllm"

    def _get_model_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        given = super()._get_model_kwargs(**kwargs)
        return {**given, "extra_body": rag_client.references(self.engine, RETRIEVED.get(), given.get("extra_body"))}


def main() -> None:
    """Index the folder, ask the question, and print the answer and the number of steps."""
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    given = rag_client.options(__doc__ or "", "url", "model", "embeddings_url", "embedder", "folder", "question")
    embedder = OpenAILikeEmbedding(model_name=given.embedder, api_base=f"{given.embeddings_url}/v1", api_key="none")
    nodes = [TextNode(text=text) for text in rag_client.read(Path(given.folder))]
    served: dict[str, Any] = {"api_base": f"{given.url}/v1", "api_key": "none", "is_chat_model": True}
    model = ReferringModel(model=given.model, engine=given.engine, temperature=0, max_tokens=200, **served)
    engine = VectorStoreIndex(nodes, embed_model=embedder).as_query_engine(
        llm=model,
        similarity_top_k=rag_client.MOST,
        node_postprocessors=[SendReferences()],  # the last one, if there are others
        text_qa_template=PromptTemplate(given.template.format(passage="{context_str}", question="{query_str}")),
    )
    before = rag_client.counts(given.url)
    answer = engine.query(given.question)
    rag_client.report(given.url, before, str(answer), RETRIEVED.get())


if __name__ == "__main__":
    main()
