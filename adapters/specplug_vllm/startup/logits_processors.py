"""Custom logits processors, of which vLLM's V1 runner loads none with speculation, and says nothing of installed ones.

V2 loads those written for it, and applies them at every draft position; it refuses to start beside V1's.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from specplug.errors import EngineError
from specplug_vllm.config import required, runner_of

GROUP = "vllm.logits_processors"
ALLOWED_BY = "dropped_logits_processors"


def installed() -> dict[str, str]:
    """Return the packages of the processors that are installed as plug-ins of vLLM, by the processors' names."""
    return {each.name: "" if each.dist is None else each.dist.name for each in entry_points(group=GROUP)}


def dropped(vllm_config: Any) -> list[str]:
    """Return the names of installed processors that a server which enables specplug runs without."""
    return sorted(installed()) if runner_of(vllm_config) == "v1" else []


def refuse_unsupported(vllm_config: Any) -> None:
    """Refuse to drop a processor unless the settings name it as dispensable.

    Raises:
        EngineError: V1 would serve without a processor that is installed, or that the launch names.
    """
    if runner_of(vllm_config) == "v2":
        return
    packages = installed()
    allowed = required(vllm_config).settings.dropped_logits_processors
    lost = [f"{name!r} of the package {packages[name]}" for name in dropped(vllm_config) if name not in allowed]
    flag = [f"{each} of --logits-processors" for each in vllm_config.model_config.logits_processors or ()]
    if lost or flag:
        ways = [f"name dispensable ones in the setting {ALLOWED_BY!r}"] * bool(lost)
        ways += ["leave the flag out"] * bool(flag)
        raise EngineError.build(
            "vLLM's V1 runner loads no logits processors with speculation",
            who="specplug_vllm",
            found=", ".join([*lost, *flag]),
            expected="none",
            remedy=f"Use the V2 runner, which loads those written for it, or {' and '.join(ways)}",
        )
