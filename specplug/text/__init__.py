"""Tokenizers: loading, identifying and using them, and the different tokenizations of one text.

loading             tokenizers by name, path or model id
tokenizers          one interface for Hugging Face's, mistral_common's and the engines' own
fingerprint         a tokenizer's identity, from the ids that it gives a fixed set of texts
request_tokenizer   tokenization of requests' reference texts while an engine serves
pieces              splitting of long texts at token boundaries
retokenized         the tokens that a text begins with after a space or a new line
jump_forward        the canonical tokens of a string that a grammar forces
translate           token ids of one tokenizer as those of another
"""
