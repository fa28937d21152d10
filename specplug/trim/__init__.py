"""Which draft tokens are worth verifying: those whose summed survival exceeds their cost by most.

`survival` is the plain form of the decision, for any device, and the same for chains on a CPU by operations on arrays.
`survival_on_gpu` is the same for chains on a GPU, in Triton: it counts tokens by level and sorts nothing.
"""

from specplug.steps.trim import SurvivalTrimmer, admitted, best_count, completed, rank_tokens

__all__ = ["SurvivalTrimmer", "admitted", "best_count", "completed", "rank_tokens"]
