"""Request fields: where they stand (`arguments`), what they may be (`schema`), `parsing`, and the `wire` form."""
