"""Configuration of all tests: no deadlines, so that a busy machine makes no test fail, and torch on one thread.

The models are so small that threads which wait for each other on a busy machine take many times as long.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; also for the processes that tests start

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
