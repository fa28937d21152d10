"""The tests in here need an engine's own environment: `make test-vllm` names their folder, other runs pass it by."""

from __future__ import annotations

collect_ignore = ["vllm"]
