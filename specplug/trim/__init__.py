"""Which draft tokens are worth verifying: those whose summed survival exceeds their cost by most.

`survival` is the plain form of the decision, for any device.  `survival_on_cpu` is the same for batches in host memory,
compiled by numba, and `survival_on_gpu` for chains on a GPU, in Triton: both count tokens by level and sort nothing.
"""

from specplug.trim.survival import SurvivalTrimmer, admitted, best_count, completed, rank_tokens

__all__ = ["SurvivalTrimmer", "admitted", "best_count", "completed", "rank_tokens"]
