"""Token ids of one tokenizer as those of another, exact to the byte, by tables.

vocabulary     a tokenizer's table from ids to bytes, and its bare encoding of text
libraries      reads the vocabularies of Hugging Face's, SentencePiece's, Tekken's and tiktoken's tokenizers
intersection   tokens that two vocabularies share: special ones by role, ordinary ones by bytes (TLI)
tables         each token as the other tokenizer's, and what it takes to write text as a tokenizer does
"""
