"""Plain prompts as chats: the chat template of a model's tokenizer, or of the server that runs the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specplug.errors import RequestError

PROBE = "question"

Post = Callable[[str, Mapping[str, Any]], Mapping[str, Any] | None]
"""Sends a body to a server's route and returns the answer's JSON; None if the server refuses."""


def has_chat_template(tokenizer: Any) -> bool:
    """Return whether the tokenizer, of Hugging Face's kind, has a chat template that marks roles."""
    return bool(getattr(tokenizer, "chat_template", None)) and _marks_roles(_rendered(tokenizer, PROBE, tokenize=False))


def chat_ids(tokenizer: Any, question: str, system: str | None = None) -> list[int]:
    """Return the token ids of a chat with one question, up to where the answer begins.

    Raises:
        RequestError: the template does not take the messages; some take no system prompt.
    """
    return list(_rendered(tokenizer, question, system, tokenize=True))


def server_has_chat_template(post: Post, model: str) -> bool:
    """Return whether the model of a vLLM or SGLang server has a chat template that marks roles."""
    tokens = (post("/tokenize", {"model": model, "messages": messages(PROBE)}) or {}).get("tokens")
    if not tokens:
        return False
    shown = post("/detokenize", {"model": model, "tokens": tokens, "skip_special_tokens": False}) or {}
    text = shown.get("prompt") or shown.get("text")  # vLLM's answer, SGLang's
    return isinstance(text, str) and _marks_roles(text)


def messages(question: str, system: str | None = None) -> list[dict[str, str]]:
    """Return a chat of one question in OpenAI's form."""
    message = {"role": "user", "content": question}
    return [message] if system is None else [{"role": "system", "content": system}, message]


def _marks_roles(rendered: str) -> bool:
    """Return whether a template adds more than white space; otherwise the model was trained on no chats."""
    return rendered.strip() != PROBE


def _rendered(tokenizer: Any, question: str, system: str | None = None, *, tokenize: bool) -> Any:
    chat = messages(question, system)
    try:
        return tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=tokenize, return_dict=False)
    except Exception as error:  # templates are programs, and raise what they like
        raise RequestError.build(
            "the model's chat template does not take the prompt",
            who=str(getattr(tokenizer, "name_or_path", "tokenizer")),
            found=f"{type(error).__name__}: {error}",
            remedy="Leave out --system, or send the prompt as it is with --raw",
        ) from error
