"""The cost surfaces that ship: servers on NVIDIA H200 with models of common dimensions, all simulated.

Surfaces that are held out run only when they are requested by name together with `--held-out`.  They were set aside
before any policy was tuned on the others; whoever tunes on them loses the only check against overfitting.
"""

from __future__ import annotations

from benchmarks.simulate.surface import Device, Experts, Host, Model, Surface
from specplug.errors import SettingsError, suggest

LLAMA_8B = Model(layers=32, hidden=4096, vocab=128_256, parameters=7.0e9, heads=32, kv_heads=8)
LLAMA_70B = Model(layers=80, hidden=8192, vocab=128_256, parameters=68.5e9, heads=64, kv_heads=8)
QWEN_30B_A3B = Model(
    layers=48,
    hidden=2048,
    vocab=151_936,
    parameters=0.9e9,
    heads=32,
    kv_heads=4,
    experts=Experts(count=128, per_token=8, parameters=48 * 3 * 2048 * 768),
)
MISTRAL_24B_FP8 = Model(
    layers=40, hidden=5120, vocab=131_072, parameters=22.3e9, heads=32, kv_heads=8, weight_bytes=1.0, kv_bytes=1.0
)
GLM_106B_A12B = Model(
    layers=46,
    hidden=4096,
    vocab=151_552,
    parameters=4.5e9,
    heads=96,
    kv_heads=8,
    weight_bytes=1.0,
    experts=Experts(count=128, per_token=8, parameters=45 * 3 * 4096 * 1408, diversity=0.85),
)

SURFACES = (
    Surface("h200-8b", "H200, dense 8B in bfloat16", LLAMA_8B),
    Surface("h200-70b-tp4", "4 x H200, dense 70B in bfloat16", LLAMA_70B, Device(ranks=4)),
    Surface("h200-moe-30b", "H200, mixture of experts, 30B of which 3B are active, in bfloat16", QWEN_30B_A3B),
    Surface(
        "h200-24b-fp8-sync",
        "H200, dense 24B in FP8, synchronous scheduling and a host proposer without a stream",
        MISTRAL_24B_FP8,
        Device(arithmetic=9.6e14, sharpness=2.2),
        Host(step=1.4e-3, per_row=1.1e-5, speculation=4e-4, drafting=3e-4, drafting_per_row=7e-6, change=0.0),
        held_out=True,
    ),
    Surface(
        "h200-moe-106b-tp2-model",
        "2 x H200, mixture of experts, 106B of which 12B are active, in FP8, with a draft model that idles at K = 0",
        GLM_106B_A12B,
        Device(arithmetic=8.0e14, ranks=2, sharpness=4.5),
        Host(drafting=2e-4, drafting_per_position=2.2e-4, idle=3.5e-4, change=2e-4, catch_up=1.5e-6),
        held_out=True,
    ),
)


def surface_named(name: str, *, held_out: bool = False) -> Surface:
    """Return a surface by its name.

    Args:
        name: its name.
        held_out: whether surfaces that are held out may be used.

    Raises:
        SettingsError: there is no such surface, or it is held out and `held_out` is false.
    """
    known = {surface.name: surface for surface in SURFACES}
    if name not in known:
        raise SettingsError.build(f"unknown surface {name!r}", who="--surface", remedy=suggest(name, known))
    if known[name].held_out and not held_out:
        raise SettingsError.build(
            f"surface {name!r} is held out",
            who="--surface",
            remedy="Add --held-out to assess a finished policy; do not tune on this surface",
        )
    return known[name]


def open_surfaces() -> tuple[Surface, ...]:
    """Return the surfaces that are not held out."""
    return tuple(surface for surface in SURFACES if not surface.held_out)
