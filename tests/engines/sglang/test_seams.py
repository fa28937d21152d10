"""The seams in SGLang's own processes, and what is said when one has moved."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from specplug_sglang.seams import OPTIONAL, SEAMS

PARTS = {part for seam in SEAMS for part in seam.where}


@pytest.mark.parametrize("where", sorted(PARTS))
def test_every_seam_holds_in_the_imported_sglang(baseline, where):
    assert baseline.inside(moved, where=where) == []


def test_what_serves_comfort_alone_is_off_with_one_warning_where_it_has_moved(baseline):
    first, second = baseline.call(rename_optional_seam)
    assert "WeightUpdater.end_weight_update is gone" in first
    assert first.endswith(f"The server runs; off: {OPTIONAL['events']}")
    assert second.endswith(f"The server runs; off: {OPTIONAL['metrics']}")


# -- functions that run there ------------------------------------------------------------------------------------------


def moved(scheduler, where):
    from specplug_sglang import seams

    seams.require(where)
    return seams.moved_seams(where)


def rename_optional_seam(engine):
    """Return the warnings when seams of optional features have moved; all other checks pass."""
    import sglang.srt.utils.common as common
    from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater

    from specplug_sglang import seams
    from specplug_sglang.frontend import http
    from specplug_sglang.scheduler import events

    weights = SimpleNamespace(get_model_runner=lambda: None)
    with warned() as records, pytest.MonkeyPatch.context() as patch:
        patch.delattr(WeightUpdater, "end_weight_update")
        patch.delattr(common, "add_prometheus_middleware")
        patch.setattr(events, "_runners", {None: None})
        for _ in range(2):
            events._notify_change(weights)
            http.export_metrics(None, SimpleNamespace(state=SimpleNamespace(specplug="a manager")))
        for where in PARTS - OPTIONAL.keys():
            seams.require(where)
    return records


@contextmanager
def warned():
    """Collect what specplug logs, and let it look at all seams anew before and after."""
    from specplug_sglang import seams

    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    looks = (seams.require, seams.available, seams.support.warn_untested)
    for look in looks:
        look.cache_clear()
    logging.getLogger("specplug").addHandler(handler)
    try:
        yield records
    finally:
        logging.getLogger("specplug").removeHandler(handler)
        for look in looks:
            look.cache_clear()
