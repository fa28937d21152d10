"""N-gram lookup: drafts what followed the last tokens when they occurred before."""
