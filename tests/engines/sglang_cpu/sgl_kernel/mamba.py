"""The kernels of recurrent layers that SGLang imports on a CPU; short convolutions call none of them."""

import torch

from sgl_kernel.absent import absent

causal_conv1d_fn_cpu = absent("causal_conv1d_fn_cpu")
causal_conv1d_update_cpu = absent("causal_conv1d_update_cpu")
chunk_gated_delta_rule_cpu = absent("chunk_gated_delta_rule_cpu")

_LIBRARY = torch.library.Library("sgl_kernel", "FRAGMENT")
for name in ("fused_gdn_gating_cpu", "fused_sigmoid_gating_delta_rule_update_cpu"):
    _LIBRARY.define(f"{name}() -> ()")  # there to be named, not to be called
