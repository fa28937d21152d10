"""Test only: SGLang's kernels for the CPU in plain torch, as far as its speculation calls them.

SGLang's own build of them is for CPUs with AMX.  The names are those that SGLang imports; what it imports but never
calls here raises when it is called.
"""

from sgl_kernel import seeds as seeds  # registers an operation
from sgl_kernel.absent import absent
from sgl_kernel.cache import copy_all_layer_kv_cache_cpu
from sgl_kernel.sampling import top_k_renorm_prob, top_p_renorm_prob, tree_speculative_sampling_target_only
from sgl_kernel.slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    fill_accept_out_cache_loc_cpu,
)
from sgl_kernel.speculative import build_tree_kernel_efficient_cpu
from sgl_kernel.verify import fill_bonus_tokens_cpu, verify_tree_greedy_cpu

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "top_k_renorm_prob",
    "top_p_renorm_prob",
    "tree_speculative_sampling_target_only",
    "verify_tree_greedy_cpu",
]


rotate_input_ids_cpu = absent("rotate_input_ids_cpu")
