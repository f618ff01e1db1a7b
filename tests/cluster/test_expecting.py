"""A balancer goes by the forecast of a file as it is now, and without one where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.cluster.expecting import ForecastFile
from shoal.pipeline.forecast import FORECAST_SCHEMA


def write(path: Path, loads: list[float]) -> None:
    count = len(loads)
    rows = [["s"] * count, [float(number) for number in range(count)], loads, loads]
    pq.write_table(pa.table(rows, schema=FORECAST_SCHEMA), path)


def test_a_file_is_read_when_it_is_new_and_what_cannot_be_read_is_no_forecast(tmp_path: Path) -> None:
    path = tmp_path / "forecast.parquet"
    file = ForecastFile(str(path))
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
    assert ForecastFile("").look() is None
