"""Explanations of single answers, from a trace: what drafted each token, and what steps were lost to."""
