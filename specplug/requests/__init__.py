"""Request fields: `schema`, `parsing` of one request, a server's `front_end`, and the wire form between processes."""
