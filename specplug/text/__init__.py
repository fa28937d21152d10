"""Tokenizers: loading, identifying and using them, and the different tokenizations of one text.

tokenizers          tokenizers by name, path or model id, and one interface for those of all libraries
fingerprint         a tokenizer's identity, from the ids that it gives a fixed set of texts
request_tokenizer   tokenization while an engine serves: reference texts, and strings that a grammar forces
retokenized         long texts in pieces, and the tokens that a text begins with after a space or a new line
translate           token ids of one tokenizer as those of another
"""
