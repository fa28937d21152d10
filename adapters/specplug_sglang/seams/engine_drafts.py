"""Seams of SGLang's own draft models, whose draft lengths specplug plans."""

from __future__ import annotations

from specplug.seams.seam import Seam, seam

PART = "engine drafts"

ENGINE_DRAFTS: tuple[Seam, ...] = (
    seam("sglang.srt.speculative.spec_info:SpeculativeAlgorithm.handle_server_args", PART, takes="server_args"),
    seam("sglang.srt.speculative.spec_info:SpeculativeAlgorithm.create_worker", PART, takes="server_args"),
    seam("sglang.srt.environ:Envs", PART, holds="SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"),
    seam("sglang.srt.arg_groups.fields.spec:Spec", PART, holds="enable_multi_layer_eagle"),
    seam("sglang.srt.arg_groups.fields.lora:Lora", PART, holds="enable_lora"),
    # Buffers are sized for the longest draft, whatever length a step has.
    seam("sglang.srt.runtime_context:max_speculative_num_draft_tokens", PART),
    seam(
        "sglang.srt.speculative.adaptive_runtime_state:AdaptiveController.__init__",
        PART,
        takes="worker policy",
    ),
    seam(
        "sglang.srt.speculative.adaptive_runtime_state:AdaptiveSpecPolicy",
        PART,
        holds="candidate_steps cuda_graph_bs_for_step get_steps_for_batch on_verify_complete set_cuda_graph_bs",
    ),
    seam(
        "sglang.srt.speculative.eagle_worker_v2:EAGLEWorkerV2",
        PART,
        holds="activate_step_by_batch adaptive_controller apply_runtime_state build_adaptive_runtime_state "
        "on_verify_complete_cpu",
    ),
    seam("sglang.srt.speculative.eagle_worker_v2:EAGLEWorkerV2.init_cuda_graphs", PART),
    seam(
        "sglang.srt.speculative.eagle_worker_v2:EAGLEWorkerV2.__init__",
        PART,
        takes="server_args gpu_id nccl_port target_worker",
    ),
    seam("sglang.srt.speculative.eagle_worker_v2:EAGLEWorkerV2.forward_batch_generation", PART, takes="batch"),
    seam("sglang.srt.speculative.eagle_worker_v2:EAGLEWorkerV2.verify", PART, takes="batch"),
    seam("sglang.srt.speculative.eagle_worker_v2", PART, holds="logger"),
    seam(
        "sglang.srt.speculative.standalone_worker_v2:StandaloneWorkerV2.__init__",
        PART,
        takes="server_args gpu_id nccl_port target_worker",
    ),
    seam("sglang.srt.speculative.eagle_info:EagleVerifyInput", PART, holds="draft_token_num retrieve_next_token"),
)
