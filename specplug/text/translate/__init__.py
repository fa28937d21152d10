"""Token ids of one tokenizer as those of another, exact to the byte, by tables.

vocabulary     a tokenizer's table from ids to bytes, and its bare encoding of text
libraries      reads the vocabularies of Hugging Face's, SentencePiece's, Tekken's and tiktoken's tokenizers
tables         tokens that two vocabularies share, each token as the other's, and how a tokenizer writes text
"""
