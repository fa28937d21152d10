"""Token ids of one tokenizer as those of another: incremental, and exact to the byte.

vocabulary     a tokenizer's table from ids to bytes, and its bare encoding of text
libraries      reads the vocabularies of Hugging Face's, SentencePiece's, Tekken's and tiktoken's tokenizers
words          boundaries over which a tokenizer merges nothing, and the cached tokens of the words between them
intersection   tokens that two vocabularies share: special ones by role, ordinary ones by bytes (TLI)
translator     the draft's context of a request, extended by the target's new ids
drafts         drafted ids as the target's (SLEM)
tables         translation token by token, by tables, for devices on which no tokenizer runs
"""
