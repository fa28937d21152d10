"""Retrieval lookup: drafts from corpora beside own text, references and remembered responses."""
