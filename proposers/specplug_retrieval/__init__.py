"""Retrieval lookup: drafts from corpora in addition to own text, references and remembered responses."""
