"""What keeps apart whatever is remembered across requests."""

from __future__ import annotations


def isolation_key(tenant: str | None, engine: tuple[str | None, ...] = (), lora_id: int | str | None = None) -> str:
    """Return a request's isolation key: the tenant, else the engine's own isolation key, with the LoRA adapter's id.

    Different answers to these three questions give different keys: clients choose the texts, so none of them may spell
    another one's key.

    Args:
        tenant: as the request names it; None where it names none.
        engine: what keeps the engine's own prefix cache apart, such as a cache salt; None or "" where nothing does.
        lora_id: of the LoRA adapter; None is the model itself.

    Returns:
        "" for requests that bring none of these: they share.
    """
    if tenant is not None:
        return repr(("tenant", tenant, lora_id))
    own = tuple(part or None for part in engine)
    return "" if lora_id is None and not any(own) else repr(("engine", own, lora_id))
