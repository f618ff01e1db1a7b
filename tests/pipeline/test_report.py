"""The report: latency, traffic and cost add up, and everything that is missing is said.

`test_submit` compares it with the same report on Spark.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from tests.support.archives import make_archive, message
from tests.support.records import BOB, DAY_US, NOON_US

from shoal import cli
from shoal.load.window import LoadWindow
from shoal.pipeline import generated_windows, report_job
from shoal.pipeline.event_archive import TimeSpan
from shoal.pipeline.kept_windows import WindowKeeper
from shoal.pipeline.log_buckets import buckets_of, percentile_us

ALICE = 0xA11CE
NOON_S = NOON_US // 1_000_000
HOUR_US = 3_600_000_000


def orders(latency_us: list[int]) -> list[dict[str, Any]]:
    """Messages of two publishers: Bob's every 10 s from noon on, with these latencies, Alice's a day later."""
    rows = []
    for sequence, late_us in enumerate(latency_us, 1):
        at_us = NOON_US + sequence * 10_000_000
        rows.append(message("orders.eu", BOB, sequence, at_us, recorded_at=at_us + late_us, payload=b"x" * 100))
    rows += [message("orders.us", ALICE, n, NOON_US + DAY_US + n, recorded_at=NOON_US + DAY_US + 2000) for n in (1, 2)]
    rows.append(message("orders.eu", ALICE, 1, NOON_US + 1, payload=b"y" * 300))
    rows.append(message("orders.eu", 0, 0, NOON_US + 2))  # of a plain client: no time of publication
    rows.append({**rows[0], "server": "s2", "entry": "1-9"})  # a copy that another server recorded
    rows.append(message("orders.eu", BOB, 999, NOON_US + 3, is_end=True, payload=None))
    rows.append(message("orders.eu", BOB, 0, NOON_US + 4, is_gap=True, payload=None, reason="lost", gap_from=7))
    return rows


@pytest.fixture(scope="module")
def latency_us() -> list[int]:
    return [int(late_us) for late_us in np.random.default_rng(3).lognormal(9, 1, 500)]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory, latency_us: list[int]) -> Path:
    return make_archive(tmp_path_factory.mktemp("report") / "archive", orders(latency_us))


@pytest.fixture(scope="module")
def windows() -> list[LoadWindow]:
    """Windows from noon on, over two hours."""
    starts = [*range(0, 20, 2), *range(3600, 3610, 2)]
    made = generated_windows.make_windows(4, 5, starts=[start % 1400 for start in starts])
    named = [
        LoadWindow(NOON_S + start, NOON_S + start + 2, rename(window.table))
        for start, window in zip(starts, made, strict=True)
    ]
    idle = named[-1].table.filter(pc.is_null(named[-1].table["kind"]))
    return [*named, LoadWindow(NOON_S + 7200, NOON_S + 7202, idle)]


def rename(table: pa.Table) -> pa.Table:
    """The first channel becomes orders.eu."""
    names = table["unit"].to_pylist()
    names[0] = b"orders.eu"
    return table.set_column(
        table.schema.get_field_index("unit"), table.schema.field("unit"), pa.array(names, pa.binary())
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, windows: list[LoadWindow]) -> Path:
    place = tmp_path_factory.mktemp("load") / "kept"
    with WindowKeeper(place) as keeper:
        keeper.take(0, windows)
    return place


def rows_of(table: pa.Table, key: str) -> dict[Any, dict[str, Any]]:
    return {row[key]: row for row in table.to_pylist()}


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99, 1.0])
def test_percentiles_of_buckets_are_off_by_one_percent_at_most(share: float) -> None:
    times_us = np.random.default_rng(1).lognormal(8, 2, 10_000).astype(np.int64) + 1
    buckets, counts = np.unique(buckets_of(times_us), return_counts=True)
    exact = np.quantile(times_us, share, method="inverted_cdf")
    assert percentile_us(buckets, counts, share) == pytest.approx(exact, rel=0.011)
    assert percentile_us(buckets[:0], counts[:0], share) is None
    assert buckets_of(np.array([-5000, -900, 0, 1])).tolist() == [-1, 0, 0, 1]


def test_latency_and_traffic_are_those_of_the_messages(archive: Path, latency_us: list[int]) -> None:
    made = report_job.run(str(archive), None)
    channels = rows_of(made.channels, "channel")
    of_bob = np.array([*latency_us, 0])
    for name, share in (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99)):
        exact_ms = np.quantile(of_bob, share, method="inverted_cdf") / 1000
        assert channels["orders.eu"][name] == pytest.approx(exact_ms, rel=0.011)
    assert (channels["orders.eu"]["messages"], channels["orders.eu"]["bytes"]) == (502, 50_302)
    assert channels["orders.us"]["messages"] == 2
    publishers = rows_of(made.publishers, "publisher")
    assert {id: (row["messages"], row["bytes"], row["channels"]) for id, row in publishers.items()} == {
        BOB: (500, 50_000, 1),
        ALICE: (3, 304, 2),
        0: (1, 2, 1),
    }
    hours = made.hours.to_pylist()
    assert [row["messages"] for row in hours] == [361, 141, 2]
    assert all(row["server_hours"] is None for row in (*hours, *channels.values(), *publishers.values()))
    assert made.totals["clocks_differ"] == 0


def test_cost_is_all_that_servers_ran_by_the_work_of_channels(kept: Path, windows: list[LoadWindow]) -> None:
    made = report_job.run(None, str(kept))
    ran = sum(window.hosts["seconds"].to_numpy().sum() for window in windows) / 3600
    idle = 4 / 3600  # the last window has two servers and no channel
    assert made.totals["all_server_hours"] == pytest.approx(ran)
    assert made.totals["idle_server_hours"] == pytest.approx(idle)
    assert made.totals["server_hours"] == pytest.approx(ran - idle)
    assert pc.sum(made.hours["all_server_hours"]).as_py() == pytest.approx(ran)
    assert made.hours.num_rows == 3
    expected = sum(expected_hours(window, b"orders.eu") for window in windows[:-1])
    found = rows_of(made.channels, "channel")["orders.eu"]
    assert found["server_hours"] == pytest.approx(expected)
    assert (found["p50_ms"], found["messages"]) == (None, None)
    sent = sum(pc.sum(window.units["bytes_out"]).as_py() * 2 for window in windows[:-1])
    assert made.totals["delivered_bytes"] == pytest.approx(sent)


def expected_hours(window: LoadWindow, unit: bytes) -> float:
    """The cost of a channel in one window, row by row."""
    hosts = {row["host"]: row for row in window.hosts.to_pylist()}
    units = window.units.to_pylist()

    def work(row: dict[str, Any]) -> float:
        host = hosts[row["host"]]
        if host["bandwidth_bytes_per_s"] / host["capacity_bytes_per_s"] >= host["cpu_share"]:
            return float(row["bytes_out"])
        return float(4 * row["publications"] + 4 * row["forwarded"] + row["messages_sent"])

    (mine,) = [row for row in units if row["unit"] == unit]
    return 2 / 3600 * work(mine) / sum(work(row) for row in units if row["host"] == mine["host"])


def test_publishers_pay_for_their_share_of_a_channel(archive: Path, kept: Path) -> None:
    made = report_job.run(str(archive), str(kept), TimeSpan(NOON_US, NOON_US + HOUR_US), "orders.*")
    cost = made.totals["server_hours"]
    publishers = rows_of(made.publishers, "publisher")
    of_bob = 359 * 100 / (359 * 100 + 302)
    assert publishers[BOB]["server_hours"] == pytest.approx(cost * of_bob)
    assert sum(row["server_hours"] for row in publishers.values()) == pytest.approx(cost)
    assert rows_of(made.channels, "channel").keys() == {"orders.eu"}
    (hour,) = made.hours.to_pylist()
    assert 0 < hour["server_hours"] < hour["all_server_hours"] == pytest.approx(40 / 3600)


def test_the_command_prints_tables_of_80_columns_and_writes_files(
    archive: Path, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("COLUMNS", "80")
    words = ["pipeline", "report", "--in-process", "--archive", str(archive), "--windows", str(kept)]
    assert cli.main([*words, "--channel", "orders.*", "--top", "3", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for text in ("channels: 2 of 2", "orders.eu", "000000000b0b", "plain clients", "11-01 12:00"):
        assert text in out
    assert "504 messages, 0.1 MB, latency p50" in out
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("wrote"))
    assert cli.main([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["totals"]["messages"] == 504
    assert len(facts["channels"]) == 10
    assert facts["hours"][0]["hour"] == "2026-11-01T12:00:00+00:00"
    tables = pq.read_table(tmp_path / "channels.parquet"), csv.read_csv(tmp_path / "channels.csv")
    assert tables[0]["messages"].to_pylist() == tables[1]["messages"].to_pylist() == [502, 2]
    assert {"report.svg", "report.png", "channel_hours.csv"} <= {path.name for path in tmp_path.iterdir()}


def test_what_has_nothing_to_report_is_said(archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = make_archive(tmp_path / "empty", [])
    for words, complaint in (
        ([], "a report needs an archive or load windows: give --archive, --windows, or both"),
        (["--archive", str(tmp_path / "none")], "there is no archive at"),
        (["--archive", str(empty)], "is empty: run `shoal pipeline archive` first"),
        (["--archive", str(archive), "--until", "2020-01-01"], "has no messages of that time"),
        (["--archive", str(archive), "--channel", "deals"], "has no channel that matches 'deals'"),
        (["--archive", str(archive), "--since", "1d", "--until", "2d"], "--since 1d is not before --until"),
        (["--archive", str(archive), "--top", "0"], "--top is 0: give a number above 0"),
        (["--windows", str(archive)], "is a Delta table, but not one of load windows"),
    ):
        assert cli.main(["pipeline", "report", "--in-process", *words]) == 1
        assert complaint in capsys.readouterr().err
