"""Kept load windows: a Delta table that gives every window back as it was, each once, and old folders become one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from shoal import cli
from shoal.errors import ArchiveError, PipelineError
from shoal.flow.workloads import traffic_of
from shoal.history.table import channel_name, channel_text
from shoal.load.window import END_KEY, START_KEY, VERSION_KEY, LoadWindow
from shoal.pipeline import generated_windows, kept_windows
from shoal.pipeline.kept_windows import WindowKeeper, find_windows, kept_rows, open_windows

DAY_S = generated_windows.DAY_S
ORDER = [(name, "ascending") for name in ("kind", "host", "unit")]


@pytest.fixture(scope="module")
def windows() -> list[LoadWindow]:
    made = generated_windows.make_windows(4, 5, starts=range(3500, 3700, 2))
    name = made[0].table["unit"][0].as_py()
    odd = pa.array([b"\\x\xff" if unit == name else unit for unit in made[0].table["unit"].to_pylist()], pa.binary())
    first = made[0].table.set_column(
        made[0].table.schema.get_field_index("unit"), made[0].table.schema.field("unit"), odd
    )
    return [LoadWindow(made[0].start_s, made[0].end_s, first), *made[1:]]


def keep(place: str | Path, windows: list[LoadWindow]) -> None:
    with WindowKeeper(place, day_s=DAY_S) as keeper:
        keeper.take(0, windows)


def same(found: list[LoadWindow], windows: list[LoadWindow]) -> bool:
    """Whether the windows are equal, except for the order of units on a host."""
    tables = [[kept_rows(window).sort_by(ORDER) for window in each] for each in (found, windows)]
    return len(found) == len(windows) and all(map(pa.Table.equals, *tables))


def test_windows_are_kept_as_they_were_each_once(tmp_path: Path, windows: list[LoadWindow]) -> None:
    keep(tmp_path / "w", windows[:40])
    keep(tmp_path / "w", windows[35:])  # a job that was started again repeats some
    found = open_windows(tmp_path / "w")
    assert same(list(found.windows()), windows)
    assert (found.info.day_s, found.end_s) == (DAY_S, windows[-1].end_s)
    assert len(found.spans()) == 2
    (span,) = found.spans(3_650_000_000, 3_660_000_000)
    assert len(np.unique(span.read()["start_at"])) == 5
    with pytest.raises(PipelineError, match=f"has days of {DAY_S} s, not of 86400 s"):
        WindowKeeper(tmp_path / "w")


def test_other_programs_read_real_columns(tmp_path: Path, windows: list[LoadWindow]) -> None:
    keep(tmp_path / "w", windows)
    frame = pl.read_delta(str(tmp_path / "w"))
    sent = frame.filter(pl.col("unit").is_null()).select(pl.col("bytes_out").sum()).item()
    assert sent == pytest.approx(sum(sum(window.hosts["bytes_out"].to_pylist()) for window in windows))
    assert {"start_at", "end_at", "day", "kind", "unit", "host", "cpu_share"} <= set(frame.columns)


def test_a_day_with_many_files_is_compacted_and_reads_the_same(
    tmp_path: Path, windows: list[LoadWindow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_windows, "COMMIT_S", 10)
    monkeypatch.setattr(kept_windows, "COMPACT_FILES_MIN", 15)
    keep(tmp_path / "w", windows)
    assert len(open_windows(tmp_path / "w").files()) == 6
    assert same(list(open_windows(tmp_path / "w").windows()), windows)


def test_of_two_jobs_that_keep_windows_in_one_table_the_second_is_rejected(
    tmp_path: Path, windows: list[LoadWindow]
) -> None:
    first, second = (WindowKeeper(tmp_path / "w", day_s=DAY_S) for _ in range(2))
    for keeper in (first, second):
        keeper.add(windows[0])
    first.commit()
    with pytest.raises(ArchiveError, match="another job has written to the table of load windows"):
        second.commit()
    assert len(list(open_windows(tmp_path / "w").windows())) == 1


def test_what_is_no_table_of_load_windows_is_said(tmp_path: Path, windows: list[LoadWindow]) -> None:
    with pytest.raises(PipelineError, match=r"there are no load windows in .*: keep some with"):
        open_windows(tmp_path / "none")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(PipelineError, match="has other files: name an empty directory"):
        WindowKeeper(tmp_path / "other")
    pl.DataFrame({"a": [1]}).write_delta(str(tmp_path / "table"))
    with pytest.raises(PipelineError, match="is a Delta table, but not one of load windows"):
        find_windows(tmp_path / "table")
    keep(tmp_path / "w", windows[:1])
    next((tmp_path / "w").glob("day=*/*.parquet")).write_bytes(b"nonsense")
    with pytest.raises(PipelineError, match=r"a file of the load windows in .* cannot be read"):
        list(open_windows(tmp_path / "w").windows())


def old_folder(folder: Path, *parts: bytes) -> None:
    """What the last version without tables wrote."""
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"version": 1, "day_s": DAY_S, "source": "recorded"}))
    (folder / "windows-000000003500.shoal").write_bytes(
        b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    )


def of_version_2(window: LoadWindow, version: bytes = b"2") -> bytes:
    """A window without kinds, as version 2 wrote it, under any version."""
    sink = pa.BufferOutputStream()
    metadata = {VERSION_KEY: version, START_KEY: b"%d" % window.start_s, END_KEY: b"%d" % window.end_s}
    table = window.table.drop_columns(["kind", "host_kind", "site"]).replace_schema_metadata(metadata)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def test_an_old_folder_becomes_a_table_in_its_place(
    tmp_path: Path, windows: list[LoadWindow], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "old"
    old_folder(folder, of_version_2(windows[0]), *(window.to_bytes() for window in windows[1:9]))
    path = next(folder.glob("*.shoal"))
    path.write_bytes(path.read_bytes()[:-5])  # its writer was killed
    for use in (open_windows, WindowKeeper):
        with pytest.raises(PipelineError, match=f"run `shoal pipeline archive --migrate --archive {folder}` once"):
            use(folder)
    words = ["pipeline", "archive", "--migrate", "--archive", str(folder)]
    assert cli.main(words) == 0
    assert "is now a table of 8 load windows" in capsys.readouterr().out
    assert same(list(open_windows(folder).windows()), windows[:8])
    assert traffic_of(list(open_windows(folder).windows())).num_rows == traffic_of(windows[:8]).num_rows
    assert sorted(each.name for each in folder.iterdir()) == ["_delta_log", "day=1970-01-01"]
    assert cli.main(words) == 1
    assert "there is nothing to migrate" in capsys.readouterr().err


def test_a_damaged_old_folder_is_left_alone(
    tmp_path: Path, windows: list[LoadWindow], capsys: pytest.CaptureFixture[str]
) -> None:
    old_folder(tmp_path / "a", windows[0].to_bytes(), of_version_2(windows[1], b"9"))
    assert cli.main(["pipeline", "archive", "--migrate", "--archive", str(tmp_path / "a")]) == 1
    assert "version 9; this process knows 2, 3: upgrade this process" in capsys.readouterr().err
    old_folder(tmp_path / "b", windows[0].to_bytes()[:40] + b"nonsense" + windows[0].to_bytes()[48:])
    assert cli.main(["pipeline", "archive", "--migrate", "--archive", str(tmp_path / "b")]) == 1
    assert "is damaged" in capsys.readouterr().err
    for folder in ("a", "b"):
        assert list((tmp_path / folder).glob("*.shoal"))
        assert (tmp_path / folder / "manifest.json").exists()


@pytest.mark.parametrize("name", [b"orders.eu", b"\xff", b"\\xff", b"a\\b\xff", "größe".encode()])
def test_every_name_of_a_channel_comes_back_from_its_text(name: bytes) -> None:
    assert channel_name(channel_text(name)) == name
