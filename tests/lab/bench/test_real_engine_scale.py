"""The throughput of the engine on real processes, with few filters: all layouts are measured, all deliveries come."""

from __future__ import annotations

import pytest

from shoal.engine.warm_up import warm_up
from shoal.lab.bench.engine_scale import operator_cpu, throughput
from shoal.lab.bench.engine_scale.load import AIR
from shoal.lab.bench.engine_scale.throughput import LAYOUTS, measure

SIZE = 400


async def test_all_layouts_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_cpu, "EVENTS", {True: 128, False: 128})
    monkeypatch.setattr(operator_cpu, "REPEATED", 1)
    monkeypatch.setattr(throughput, "RUN_S", 0.3)
    monkeypatch.setattr(throughput, "TRIAL", 200)
    warm_up()
    notes: list[str] = []
    found = await measure(AIR, (SIZE,), 1, notes.append)
    assert [point.layout for point in found.points] == [layout.name for layout in LAYOUTS]
    assert found.gaps == 0
    for point in found.points:
        assert 1 <= point.deliveries <= point.matches <= 10
        assert min(point.engine.events_per_s, point.other_per_s, point.engine.engine_us, point.other_us) > 0
        assert point.engine.engine_us < point.engine.all_us
    assert set(found.processes[SIZE]) == {"access_point", "matcher", "exit_point"}
    assert found.cpu(SIZE).matcher[2] > 0
    assert f"air: {SIZE} filters, CPU of operators" in notes
