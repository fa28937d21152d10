"""Tokenizers and the text they cut: loading them, telling them apart, and the ways one text can be tokenized.

loading             tokenizers by name, path or model id
tokenizers          one interface for Hugging Face's, mistral_common's and the engines' own
fingerprint         a tokenizer's identity, from the ids that it gives a fixed set of texts
request_tokenizer   reference texts of requests, tokenized beside a serving engine
pieces              long texts, cut where tokens end
retokenized         the tokens that a text begins with after a space or a new line
jump_forward        the canonical tokens of a string that a grammar forces
"""
