"""What keeps apart whatever is remembered across requests."""

from __future__ import annotations


def isolation_key(
    tenant: str | None,
    engine: tuple[str | None, ...] = (),
    lora_id: int | str | None = None,
    client: str | None = None,
) -> str:
    """Return a request's isolation key: whatever is known of whose it is, and the LoRA adapter's id.

    A tenant is what a client calls itself, while a cache salt may come from a proxy that knows: so no part takes the
    place of another.  Different answers to these questions give different keys: clients choose some of the texts, so
    none of them may spell another one's key.

    Args:
        tenant: as the request names it; None where it names none.
        engine: what keeps the engine's own prefix cache apart, such as a cache salt; None or "" where nothing does.
        lora_id: of the LoRA adapter; None is the model itself.
        client: a digest of the API key that the request came with, see `specplug.requests.clients`; None for none.

    Returns:
        "" for requests that bring none of these: they share.
    """
    own = tuple(part or None for part in engine) if any(engine) else ()
    if tenant is None and lora_id is None and not client and not own:
        return ""
    return repr((tenant, own, lora_id, client or None))
