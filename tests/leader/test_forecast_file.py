"""A balancer uses the current forecast of a file, and works without one."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.leader.forecast_file import ForecastFile
from shoal.pipeline.forecast import FORECAST_SCHEMA


def write(path: Path, loads: list[float]) -> None:
    count = len(loads)
    rows = [["s"] * count, [float(number) for number in range(count)], loads, loads]
    pq.write_table(pa.table(rows, schema=FORECAST_SCHEMA), path)


def test_a_changed_file_is_read_and_an_unreadable_one_gives_no_forecast(tmp_path: Path) -> None:
    path = tmp_path / "forecast.parquet"
    file = ForecastFile(str(path), clock=lambda: 0.5)
    assert file.look() is None
    write(path, [1.0, 2.0])
    first = file.look()
    assert first is not None
    assert first.bytes_out.tolist() == [1.0, 2.0]
    assert file.look() is first
    write(path, [3.0, 4.0, 5.0])
    second = file.look()
    assert second is not None
    assert second.bytes_out.tolist() == [3.0, 4.0, 5.0]
    path.write_bytes(b"nonsense")
    assert file.look() is None
    os.remove(path)
    assert file.look() is None


def test_no_file_is_no_forecast() -> None:
    assert ForecastFile("", clock=lambda: 0.5).look() is None


def test_a_forecast_for_another_day_is_logged_once_and_used_when_it_applies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, now = tmp_path / "forecast.parquet", [1.0]
    write(path, [1.0, 2.0, 3.0])
    file = ForecastFile(str(path), clock=lambda: now[0])
    assert file.look() is not None
    now[0] = 100.0
    assert file.look() is None
    assert file.look() is None
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert "98 s ago" in str(caplog.records[-1].__dict__)
    now[0] = -2 * 86400.0
    assert file.look() is None
    now[0] = -60.0
    assert file.look() is not None


@pytest.mark.parametrize("loads", [[], [float("nan")]])
def test_a_file_without_a_forecast_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loads: list[float]
) -> None:
    path = tmp_path / "forecast.parquet"
    write(path, loads)
    file = ForecastFile(str(path), clock=lambda: 0.0)
    assert file.look() is None
    assert "no forecast in use" in caplog.text


def test_a_file_with_other_content_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    assert ForecastFile(str(path), clock=lambda: 0.5).look() is None
    assert "no forecast in use" in caplog.text
