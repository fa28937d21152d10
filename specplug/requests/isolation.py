"""Isolation keys, which separate the state that is kept across requests."""

from __future__ import annotations

import hashlib


def isolation_key(
    tenant: str | None,
    engine: tuple[str | None, ...] = (),
    lora_id: int | str | None = None,
    client: str | None = None,
) -> str:
    """Return a request's isolation key, built from every known identity of its sender and the LoRA adapter's id.

    The tenant is the client's own claim, while a cache salt may come from a trusted proxy, so no part replaces another.
    Distinct combinations give distinct keys: clients choose some of the parts and must not be able to spell another
    client's key.  Keys are digests, because proposers keep them and a salt may be of any length.

    Args:
        tenant: the tenant that the request names, or None.
        engine: the values that partition the engine's own prefix cache, such as a cache salt; None or "" for none.
        lora_id: id of the LoRA adapter; None for the base model.
        client: digest of the request's API key, see `specplug.requests.clients`; None for a request without a key.

    Returns:
        The key, 64 characters; "" for requests that have none of these parts, which share state.
    """
    own = tuple(part or None for part in engine) if any(engine) else ()
    if tenant is None and lora_id is None and not client and not own:
        return ""
    return hashlib.sha256(repr((tenant, own, lora_id, client or None)).encode()).hexdigest()
