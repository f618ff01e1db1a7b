"""A compaction merges small files of a day that share channels; what it has merged is left alone."""

from __future__ import annotations

from shoal.history.archive_table import ArchivedFile, channel_groups
from shoal.pipeline.archive.batch_plan import SMALL_BYTES, plan_groups


def file(name: str, channel: str = "orders", last: str | None = None, day: int = 1, size: int = 1000) -> ArchivedFile:
    return ArchivedFile(
        path=f"day=2026-11-{day:02d}/{name}.parquet",
        day=f"2026-11-{day:02d}",
        channel=channel,
        channel_max=last or channel,
        rows=10,
        bytes=size,
        from_us=0,
        to_us=1,
    )


def files(count: int, name: str = "part", size: int = 1000) -> list[ArchivedFile]:
    return [file(f"{name}-{number}", size=size) for number in range(count)]


def sizes(found: list[ArchivedFile], files_min: int = 32) -> list[int]:
    return [len(group) for group in plan_groups(found, files_min)]


def test_few_files_and_large_ones_are_left() -> None:
    assert sizes(files(32)) == [32]
    assert sizes(files(31)) == []
    assert sizes(files(3), 2) == [3]
    assert sizes(files(1), 1) == []
    assert sizes(files(40, size=SMALL_BYTES)) == []


def test_days_and_channels_stay_apart() -> None:
    found = [file(f"part-{n}", channel, day=day) for n in range(2) for channel in ("a", "b") for day in (1, 2)]
    assert sizes(found, 2) == [2, 2, 2, 2]


def test_what_a_compaction_wrote_is_merged_only_with_new_files() -> None:
    assert sizes(files(5, "compact"), 2) == []
    assert sizes([*files(5, "compact"), *files(1)], 2) == [6]


def test_a_file_with_several_channels_belongs_to_all_of_them() -> None:
    found = [file("a", "a"), file("c", "c"), file("all", "a", "c"), file("d", "d"), file("next", "a", day=2)]
    assert [[one.path[15:-8] for one in group] for group in channel_groups(found)] == [
        ["a", "all", "c"],
        ["d"],
        ["next"],
    ]
