"""The projection of esilbops-7 to 12 from CPU by operator, and its figures, on costs whose answers are known."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from msgspec.msgpack import encode

from shoal.filters import parse
from shoal.lab.air_quality import AirQuality
from shoal.lab.bench.engine_scale import operator_cpu
from shoal.lab.bench.engine_scale.figures import result
from shoal.lab.bench.engine_scale.load import AIR, HARD, NAMES, EngineWorkload, air_filter, make_load
from shoal.lab.bench.engine_scale.operator_cpu import OperatorCpu
from shoal.lab.bench.engine_scale.projection import (
    EXITS,
    MATCHERS,
    PAPER,
    CpuByOperator,
    efficiency,
    karp_flatt,
    slices,
    speed_up,
    text_of,
    throughput,
    with_transport,
)
from shoal.lab.bench.engine_scale.throughput import LAYOUTS, LoadResult, Point, Run
from shoal.lab.experiments import experiments
from shoal.lab.experiments.figures import draw

IDEAL = CpuByOperator(
    1.0,
    {count: 120.0 / count for count in MATCHERS},
    {(matchers, exits): 1.0 for matchers in MATCHERS for exits in EXITS},
)


def test_the_configurations_are_those_of_the_paper() -> None:
    assert [text_of(layers) for layers in PAPER[:4]] == ["1-1-1", "1-2-1", "1-2-2", "1-3-1"]
    assert len(PAPER) == 11


def test_the_busiest_operator_sets_the_pace() -> None:
    cpu = CpuByOperator(5.0, {1: 100.0, 6: 20.0}, {(1, 1): 10.0, (6, 2): 40.0})
    assert (throughput(cpu, (1, 1)), cpu.bottleneck((1, 1))) == (10_000, "matcher")
    assert (throughput(cpu, (6, 2)), cpu.bottleneck((6, 2))) == (25_000, "exit point")
    assert speed_up(cpu, (6, 2)) == 2.5


def test_matchers_that_share_all_work_have_no_serial_part() -> None:
    assert [slices(layers) for layers in ((1, 1), (2, 1), (6, 2))] == [1, 2, 7]
    assert efficiency(IDEAL, (4, 1)) == pytest.approx(1.0)
    assert karp_flatt(IDEAL, (4, 1)) == pytest.approx(0.0)
    assert karp_flatt(IDEAL, (4, 2)) == pytest.approx((1 / 4 - 1 / 5) / (1 - 1 / 5))


def test_the_papers_speed_up_gives_the_papers_serial_part() -> None:
    cpu = CpuByOperator(0.1, {1: 3.4, 6: 1.0}, {(1, 1): 0.1, (6, 2): 0.1})
    assert 0.1 < karp_flatt(cpu, (6, 2)) < 0.2


def test_channels_cost_what_processes_use_beyond_the_cores() -> None:
    processes = {"access_point": 7.0, "matcher": 25.0, "exit_point": 1.0}
    cpu = with_transport({1: 40.0, 2: 20.0}, {(1, 1): 2.0, (2, 1): 3.0}, processes, (2, 1))
    assert cpu.access_point == 7.0
    assert cpu.matcher == {1: 45.0, 2: 25.0}
    assert cpu.exit_point == {(1, 1): 2.0, (2, 1): 3.0}, "less than nothing is noise"


def test_filters_of_the_city_are_those_of_their_texts() -> None:
    city = AirQuality(1000)
    for number in range(1000):
        assert encode(air_filter(city, number)) == encode(parse(city.filter_text(number)))


@pytest.mark.parametrize("name", NAMES)
def test_a_load_says_what_its_events_match(name: str, tmp_path: Path) -> None:
    load = make_load(name, (100, 300), tmp_path)
    for size in (100, 300):
        events = EngineWorkload(tmp_path).events(size)
        filters = load.some_filters(range(size))
        for at, (event, clients) in enumerate(events.decoded(0, 10)):
            matching = [number for number, each in enumerate(filters) if each.matches(event)]
            assert matching, "every event matches"
            assert events.matches(at, 1) == len(matching)
            assert events.deliveries(at, 1) == clients == len({number % 4 for number in matching})


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadResult]:
    """Real CPU of the operators, with few filters; the rates of processes are made up."""
    found: dict[str, LoadResult] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator_cpu, "EVENTS", {True: 128, False: 128})
        patch.setattr(operator_cpu, "REPEATED", 1)
        for name in NAMES:
            found[name] = loaded_with(name, tmp_path_factory.mktemp(name))
    return found


def loaded_with(name: str, directory: Path) -> LoadResult:
    load = make_load(name, (200, 1000), directory)
    cores = {size: OperatorCpu(load, size, max(MATCHERS), EXITS) for size in (200, 1000)}
    run = Run(5000.0, 30.0, 90.0, {})
    points = [Point(name, size, one.name, 5.0, 3.0, run, 8000.0, 20.0) for size in cores for one in LAYOUTS]
    processes = {"access_point": 5.0, "matcher": 10.0, "exit_point": 4.0}
    return LoadResult(points, cores, dict.fromkeys(cores, processes), 200.0, 0)


def test_the_cores_of_all_configurations_are_measured(loaded: dict[str, LoadResult]) -> None:
    for one in loaded.values():
        for cores in one.cores.values():
            assert set(cores.matcher) == set(MATCHERS)
            assert set(cores.exit_point) == {(matchers, exits) for matchers in MATCHERS for exits in EXITS}
            assert all(cost > 0 for cost in (*cores.matcher.values(), *cores.exit_point.values()))


def test_figure_7_brings_all_and_the_others_their_own(loaded: dict[str, LoadResult], tmp_path: Path) -> None:
    whole = result(7, loaded, (200, 1000))
    assert {one.name for one in whole.drawings} == {f"esilbops-{n}-{name}" for n in range(7, 13) for name in NAMES}
    assert [one.name for one in result(12, loaded, (200, 1000)).drawings] == ["esilbops-12-air", "esilbops-12-hard"]
    assert all(path.stat().st_size for path in draw(whole.drawings[:1], tmp_path))


def test_projections_are_marked_everywhere(loaded: dict[str, LoadResult]) -> None:
    found = result(7, loaded, (200, 1000))
    facts = json.loads(json.dumps(found.facts()))
    assert {one["kind"] for one in facts["series"]["measured"]} == {"real"}
    assert {one["kind"] for one in facts["series"]["projected"]} == {"projected"}
    assert len(facts["series"]["projected"]) == 2 * 2 * len(PAPER)
    assert "PROJECTED" in found.tables[1].title
    for drawing in found.drawings:
        for panel in drawing.panels:
            for line in panel.lines:
                assert line.dashed == ("projected" in line.label) == ("projected" in panel.title)
                assert all(math.isfinite(y) for y in line.y)


def test_goals_are_judged_with_a_million_filters_only(loaded: dict[str, LoadResult]) -> None:
    assert list(result(7, loaded, (200, 1000)).claims) == ["nothing is missing"]
    gaps = {name: one._replace(gaps=1) for name, one in loaded.items()}
    assert not result(7, gaps, (200, 1000)).holds
    million = {
        name: one._replace(
            points=[each._replace(filters=1_000_000) for each in one.points if each.filters == 1000],
            cores={1_000_000: one.cores[1000]},
            processes={1_000_000: one.processes[1000]},
        )
        for name, one in loaded.items()
    }
    found = result(7, million, (1_000_000,))
    assert found.headline["air_vs_channel_1M"] == found.headline["hard_vs_index_1M"] == 0.625
    assert len(found.claims) == 5
    heavy = million | {HARD: million[HARD]._replace(bytes_per_filter=300.0)}
    assert not result(7, heavy, (1_000_000,)).holds
    for size, tag in ((1_500_000, "1.5M"), (2_000_000, "2M")):  # these ended with a KeyError when all was measured
        more = {
            name: one._replace(
                points=[each._replace(filters=size) for each in one.points],
                cores={size: one.cores[1_000_000]},
                processes={size: one.processes[1_000_000]},
            )
            for name, one in million.items()
        }
        found = result(7, more, (size,))
        assert list(found.claims) == ["nothing is missing"]
        assert f"hard_vs_index_{tag}" in found.headline
    assert million[AIR].bytes_per_filter == 200.0


def test_the_names_are_known() -> None:
    assert {f"esilbops-{number}" for number in range(7, 14)} <= set(experiments("real"))
