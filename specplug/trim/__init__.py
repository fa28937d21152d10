"""The order in which draft tokens are admitted, and SurvivalTrimmer, the trim half that most policies share.

`ranking` is the plain form of the order, for any device.  `admission` is the same for batches in host memory, compiled
by numba, and `kernels` for chains on a GPU, in Triton: both search for a threshold and sort nothing.  `budget` is for
engines that fix the number of verified tokens before a step.
"""

from specplug.trim.budget import completed, priced_budget
from specplug.trim.ranking import admitted, most_tokens, rank_tokens
from specplug.trim.survival import SurvivalTrimmer

__all__ = ["SurvivalTrimmer", "admitted", "completed", "most_tokens", "priced_budget", "rank_tokens"]
