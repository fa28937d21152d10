#!/usr/bin/env bash
# Regular expressions of Hugging Face's tokenizers are Ruby's (Oniguruma): ^ and $ match at every line.
# One would expect: what Python's re and Rust's regex do.  Replace(Regex("^ "), "") takes one space off the beginning of
# a text, (?m) is for ^ and $, "." is made to match newlines by (?s), and \h is refused.
# What happens: each line loses a space; (?m) makes "." match newlines, (?s) is refused, and \h is a hexadecimal digit.
# The beginning of a text is \A, and its end \z.  A tokenizer.json with ^ or $ for them is right on all texts of one
# line, which test texts usually are.
# Seen with tokenizers 0.23.3.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "tokenizers==0.23.3"
"$work/venv/bin/python" - <<'PYTHON'
import re

import tokenizers
from tokenizers import Regex
from tokenizers.normalizers import Replace

TEXT = " a\n b"
RESULTS = {r"^ ": "a\nb", r"\A ": "a\n b", r"(?m)a.": "  b", r"(?s)a.": "refused", r"\h": " \n "}


def removed(remove):
    try:
        return remove()
    except Exception:
        return "refused"


print(f"tokenizers {tokenizers.__version__}: {TEXT!r} without what a pattern matches")
for pattern, expected in RESULTS.items():
    found = removed(lambda: Replace(Regex(pattern), "").normalize_str(TEXT))
    print(f"  {pattern:7} tokenizers {found!r:10} Python {removed(lambda: re.sub(pattern, '', TEXT))!r}")
    assert found == expected, "the behaviour has changed"
PYTHON
