"""N-gram lookup: drafts the tokens that followed earlier occurrences of the newest tokens."""
