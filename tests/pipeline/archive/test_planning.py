"""Files are put together in groups that a worker can hold, by what they take in memory."""

from __future__ import annotations

from shoal.history.manifest import ArchivedFile, Manifest
from shoal.pipeline.archive.batch_plan import plan_groups

MIB = 1 << 20


def files(count: int, raw_bytes: int, name: str = "batch") -> Manifest:
    return Manifest(
        files=tuple(
            ArchivedFile(f"data/x/{name}-{i}.parquet", "orders", "2026-11-01", 10, 1000, i, i, 1, raw_bytes)
            for i in range(count)
        )
    )


def groups(manifest: Manifest, files_min: int = 32) -> list[int]:
    return [len(paths) for paths in plan_groups(manifest, files_min)["paths"].to_pylist()]


def test_groups_are_bounded_by_what_their_rows_take_in_memory() -> None:
    assert groups(files(40, MIB)) == [40]
    assert groups(files(40, 100 * MIB)) == [5] * 8


def test_a_file_of_an_older_manifest_counts_as_much_as_it_may_hold() -> None:
    assert groups(files(40, 0)) == [8] * 5
    assert groups(files(40, 0, "compact")) == []


def test_few_files_and_large_ones_are_left() -> None:
    assert groups(files(31, MIB)) == []
    assert groups(files(3, MIB), 2) == [3]
    assert groups(files(40, 300 * MIB)) == []
    assert groups(files(41, 100 * MIB)) == [5] * 8
