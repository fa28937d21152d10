"""SurvivalTrimmer, the trim half that most policies share, and the order in which it admits draft tokens.

`survival` is the plain form of the order, for any device.  `survival_on_cpu` is the same for batches in host memory,
compiled by numba, and `survival_on_gpu` for chains on a GPU, in Triton: both search for a threshold and sort nothing.
"""

from specplug.trim.survival import SurvivalTrimmer, admitted, completed, most_tokens, priced_budget, rank_tokens

__all__ = ["SurvivalTrimmer", "admitted", "completed", "most_tokens", "priced_budget", "rank_tokens"]
