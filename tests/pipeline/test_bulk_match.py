"""Bulk matching finds what each filter says of each event, in process and on Spark, in both forms of an archive."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.filters import strategies

from shoal.errors import PipelineError, SnapshotError
from shoal.filters.event_batches import to_arrow
from shoal.filters.events import encode_event
from shoal.filters.filter import Filter
from shoal.filters.index import Index
from shoal.filters.language import parse
from shoal.filters.values import Event
from shoal.history.archive_location import ArchiveLocation
from shoal.history.archive_table import Positions
from shoal.history.table import SCHEMA
from shoal.pipeline import bulk_match, bulk_match_job, event_archive
from shoal.pipeline.archive.parquet_files import write_files
from shoal.pipeline.archive.table_writer import create_table
from shoal.pipeline.filter_sets import FilterSet, attributes_of, keep, opened, read_filters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

"""The first test compiles the kernels, if nothing else has done so before."""

SETTINGS = settings(max_examples=40, deadline=None)
WAYS = ["in process", pytest.param("on Spark", marks=[pytest.mark.spark, pytest.mark.xdist_group("shared_spark")])]

FILTERS = {
    3: parse("class = 'STOCK' and volume > 100"),
    5: parse("class = 'STOCK' or class = 'SPORTS'"),
    9: parse("price absent"),
    11: parse("class = 'MOVIES'"),
}
EVENTS: list[Event] = [
    {"class": "STOCK", "volume": 50, "price": 1.5},
    {"class": "STOCK", "volume": 500},
    {"class": "SPORTS", "type": "racing"},
    {"class": "NEWS", "price": 2.0},
]
EXPECTED: list[list[int]] = [[5], [3, 5, 9], [5, 9], []]
COUNTS = {3: 1, 5: 3, 9: 2}


def indexed(filters: Mapping[int, Filter]) -> Index:
    index = Index()
    index.insert_many(list(filters), list(filters.values()))
    return index


def messages(events: Sequence[Event]) -> pa.Table:
    """An archive of recorded messages."""
    return pa.table(
        {
            "channel": ["quotes"] * len(events),
            "publisher": pa.array([7] * len(events), pa.int64()),
            "sequence": pa.array(range(len(events)), pa.int64()),
            "payload": pa.array([b"x"] * len(events), pa.binary()),
            "attributes": pa.array([encode_event(event) if event else None for event in events], pa.binary()),
        }
    )


@SETTINGS
@given(
    st.lists(strategies.filters, min_size=1, max_size=8),
    st.lists(strategies.events, max_size=8),
    st.booleans(),
    st.integers(1, 4),
)
def test_every_output_tells_what_filters_say_of_events_one_by_one(
    filters: list[Filter], events: list[Event], in_columns: bool, cut: int
) -> None:
    held = dict(enumerate(filters, 10))
    index, attributes = indexed(held), (*attributes_of(filters), "sequence")
    table = pa.Table.from_batches([to_arrow(events)]) if in_columns else messages(events)
    numbers = pa.array(range(len(events)), pa.int64())
    if in_columns:
        table = table.append_column("sequence", numbers)
    said = [sorted(number for number, each in held.items() if each.matches(event)) for event in events]

    def found(output: bulk_match.Output) -> list[dict[str, Any]]:
        query = bulk_match.query_of(table.schema, output, attributes)
        given = table.select(query.columns)
        if query.place:
            given = given.append_column("file", pa.array(["f"] * len(events), pa.string()))
            given = given.append_column("row", numbers)
        parts = [part for first in range(0, len(events), cut) for part in given.slice(first, cut).to_batches()]
        matched = list(bulk_match.match_batches(parts, index, query))
        if output == "counts":
            return list(bulk_match.sum_counts(matched).to_pylist())
        assert all(part.schema.equals(bulk_match.output_schema(table.schema, query)) for part in matched)
        return [row for part in matched for row in part.to_pylist()]

    assert {row["filter"]: row["matches"] for row in found("counts")} == {
        number: times for number in held if (times := sum(number in ids for ids in said))
    }
    expected = [(at, ids) for at, ids in enumerate(said) if ids]
    assert [(row["sequence"], row["filters"]) for row in found("rows")] == expected
    assert [(row["row" if in_columns else "sequence"], row["filters"]) for row in found("ids")] == expected


def test_the_filters_of_a_file_have_the_ids_that_it_gives_or_the_numbers_of_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "filters.txt"
    path.write_text("# mine\n\nclass = 'STOCK'\n17: volume > 3\n[class,eq,'STOCK'],[volume,>,300000]\n")
    assert list(read_filters(path)) == [3, 17, 5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class = 'STOCK'\nvolume >\n", "line 2"),
        ("2: a = 1\nb = 1\n", "line 2: the id 2 is already used"),
        ("# nothing\n", "no filters"),
    ],
)
def test_what_is_wrong_with_a_file_of_filters_is_said_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "filters.txt"
    path.write_text(text)
    with pytest.raises(PipelineError, match=words):
        read_filters(path)


def test_a_file_of_filters_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="cannot read filters"):
        read_filters(tmp_path / "none.txt")


def test_an_index_is_kept_by_version_and_opened_once(tmp_path: Path) -> None:
    first = keep(list(FILTERS), list(FILTERS.values()), tmp_path)
    written = Path(first.path).stat().st_mtime_ns
    assert keep(list(FILTERS), list(FILTERS.values()), tmp_path) == first
    assert Path(first.path).stat().st_mtime_ns == written
    assert keep([1], [parse("a = 1")], tmp_path).version != first.version
    assert opened(first.path, first.version) is opened(first.path, first.version)
    with pytest.raises(PipelineError, match="is not version"):
        opened(first.path, "0" * 16)
    broken = tmp_path / "filters-broken.index"
    broken.write_bytes(b"nothing")
    with pytest.raises(SnapshotError):
        opened(str(broken), "broken")


@pytest.fixture
def filter_set(tmp_path: Path) -> FilterSet:
    return keep(list(FILTERS), list(FILTERS.values()), tmp_path / "filters")


def archive_of_columns(folder: Path) -> Path:
    """Two files and something that is none."""
    folder.mkdir()
    table = pa.Table.from_batches([to_arrow(EVENTS)])
    pq.write_table(table.slice(0, 2), folder / "a.parquet")
    pq.write_table(table.slice(2), folder / "b c.parquet")
    (folder / "_manifest.json").write_text("{}")
    return folder


def archive_of_messages(folder: Path) -> Path:
    """Folders by day and channel, as the archive of recorded channels has them."""
    table = messages(EVENTS).drop_columns(["channel"])
    for day, rows in (("2026-01-01", table.slice(0, 3)), ("2026-01-02", table.slice(3))):
        place = folder / f"day={day}" / "channel=17"
        place.mkdir(parents=True)
        pq.write_table(rows, place / "part.parquet")
    return folder


def archive_of_records(folder: Path) -> Path:
    """What the archive job leaves: two servers recorded the same messages, and one of them a gap and an end."""
    rows = []
    for server in ("s1", "s2"):
        for number, event in enumerate(EVENTS):
            text = json.dumps(event)
            rows.append(recorded("quotes", server, number, sequence=number + 1, payload=b"x", attributes=text))
    rows.append(recorded("quotes", "s2", 7, is_gap=True, gap_from=1, gap_to=2, reason="lost"))
    rows.append(recorded("quotes", "s2", 8, sequence=4, is_end=True))
    location = ArchiveLocation.of(folder)
    tables = [pa.Table.from_pylist(part, SCHEMA) for part in (rows[:5], rows[5:])]
    files = [file for table in tables for file in write_files(location, table, "part")]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), folder / "day=2026-01-01" / "unlisted.parquet")
    create_table(location, files, Positions())
    return folder


def recorded(channel: str, server: str, number: int, **more: Any) -> dict[str, Any]:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    row: dict[str, Any] = {"channel": channel, "server": server, "entry": f"1-{number}", "number": number}
    row |= {"recorded_at": at, "published_at": at, "publisher": 7, "epoch": 1, "is_gap": False, "is_end": False}
    return row | more


def checked(outcome: bulk_match_job.MatchResult, output: str) -> None:
    assert (outcome.events, outcome.matches, outcome.filters, outcome.matching_filters) == (4, 6, 4, 3)
    assert dict(outcome.top) == COUNTS
    assert outcome.rows == 3
    assert outcome.output == output


@pytest.mark.parametrize("way", WAYS)
def test_an_archive_of_columns_is_matched(
    way: str, filter_set: FilterSet, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    archive = archive_of_columns(tmp_path / "archive")

    def run(output: bulk_match.Output) -> pa.Table:
        out = tmp_path / output
        if way == "in process":
            checked(bulk_match_job.match_in_process(filter_set, archive, output, out), output)
        else:
            spark: SparkSession = request.getfixturevalue("spark")
            checked(bulk_match_job.match_on_spark(spark, filter_set, archive, output, out), output)
        return pq.read_table(out / bulk_match_job.OUT_FILE)

    assert dict(zip(*run("counts").to_pydict().values(), strict=True)) == COUNTS
    ids = run("ids").sort_by([("file", "ascending"), ("row", "ascending")]).to_pylist()
    assert ids == [
        {"file": "a.parquet", "row": 0, "filters": [5]},
        {"file": "a.parquet", "row": 1, "filters": [3, 5, 9]},
        {"file": "b c.parquet", "row": 0, "filters": [5, 9]},
    ]
    rows = run("rows").to_pylist()
    assert sorted((row["class"], row["volume"], tuple(row["filters"])) for row in rows) == [
        ("SPORTS", None, (5, 9)),
        ("STOCK", 50, (5,)),
        ("STOCK", 500, (3, 5, 9)),
    ]


@pytest.mark.parametrize("way", WAYS)
def test_an_archive_of_messages_is_matched_by_their_attributes(
    way: str, filter_set: FilterSet, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    archive = archive_of_messages(tmp_path / "archive")
    out = tmp_path / "out"
    if way == "in process":
        checked(bulk_match_job.match_in_process(filter_set, archive, "ids", out), "ids")
    else:
        checked(bulk_match_job.match_on_spark(request.getfixturevalue("spark"), filter_set, archive, "ids", out), "ids")
    found = pq.read_table(out / bulk_match_job.OUT_FILE).sort_by("sequence").to_pylist()
    assert [(row["channel"], row["publisher"], row["sequence"], row["filters"]) for row in found] == [
        ("17", 7, number, ids) for number, ids in enumerate(EXPECTED) if ids
    ]


@pytest.mark.parametrize("way", WAYS)
def test_of_recorded_channels_each_message_counts_once_and_gaps_do_not(
    way: str, filter_set: FilterSet, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    archive = archive_of_records(tmp_path / "archive")
    for output in get_args(bulk_match.Output):
        out = tmp_path / output
        if way == "in process":
            checked(bulk_match_job.match_in_process(filter_set, archive, output, out), output)
        else:
            spark: SparkSession = request.getfixturevalue("spark")
            checked(bulk_match_job.match_on_spark(spark, filter_set, archive, output, out), output)
    found = pq.read_table(tmp_path / "rows" / bulk_match_job.OUT_FILE).sort_by("sequence").to_pylist()
    assert [(row["sequence"], row["payload"], row["filters"]) for row in found] == [
        (number, b"x", ids) for number, ids in enumerate(EXPECTED, 1) if ids
    ]


def test_files_of_an_archive_may_have_other_columns_and_many_parts(tmp_path: Path) -> None:
    kept = keep([1, 2], [parse("a >= 0.5"), parse("b absent and c = 'x'")], tmp_path / "filters")
    (tmp_path / "archive" / "c=x").mkdir(parents=True)
    (tmp_path / "archive" / "c=__HIVE_DEFAULT_PARTITION__").mkdir(parents=True)
    pq.write_table(pa.table({"a": range(10)}), tmp_path / "archive" / "c=x" / "1.parquet", row_group_size=3)
    table = pa.table({"a": [0.25, 0.75], "b": [True, None]})
    pq.write_table(table, tmp_path / "archive" / "c=__HIVE_DEFAULT_PARTITION__" / "2.parquet")
    found = bulk_match_job.match_in_process(kept, tmp_path / "archive", "counts")
    assert dict(found.top) == {1: 10, 2: 10}
    archive = event_archive.ParquetArchive(tmp_path / "archive")
    assert archive.schema.field("a").type == pa.float64()
    small = list(archive._split(1))
    assert [(part.groups, part.first) for part in small] == [((0,), 0), ((0,), 0), ((1,), 3), ((2,), 6), ((3,), 9)]
    rows = [row["row"] for batch in archive.read(["a"], place=True) for row in batch.to_pylist()]
    assert rows == [0, 1, *range(10)]


def test_what_cannot_be_matched_is_said_before_anything_runs(filter_set: FilterSet, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no archive at"):
        bulk_match_job.match_in_process(filter_set, tmp_path / "none", "counts")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PipelineError, match="no Parquet in"):
        bulk_match_job.match_in_process(filter_set, tmp_path / "empty", "counts")
    (tmp_path / "text.parquet").write_text("no Parquet")
    with pytest.raises(PipelineError, match="cannot read the archive"):
        bulk_match_job.match_in_process(filter_set, tmp_path / "text.parquet", "counts")
    pq.write_table(pa.table({"other": [1]}), tmp_path / "other.parquet")
    with pytest.raises(PipelineError, match="no filter uses an attribute"):
        bulk_match_job.match_in_process(filter_set, tmp_path / "other.parquet", "counts")


@pytest.mark.parametrize("output", ["counts", "rows"])
def test_an_output_replaces_what_spark_or_a_process_has_written_there(
    filter_set: FilterSet, tmp_path: Path, output: bulk_match.Output
) -> None:
    archive = archive_of_columns(tmp_path / "archive")
    old = tmp_path / "out" / bulk_match_job.OUT_FILE
    (old / "_temporary").mkdir(parents=True)
    for _ in range(2):  # over a folder, then over a file
        found = bulk_match_job.match_in_process(filter_set, archive, output, tmp_path / "out")
        assert pq.read_table(old).num_rows == found.rows
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(PipelineError, match=r"cannot write to .*file: .*name another folder"):
        bulk_match_job.match_in_process(filter_set, archive, output, tmp_path / "file")


def test_an_archive_is_never_replaced_by_what_is_found_in_it(filter_set: FilterSet, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    archive = archive_of_columns(out / bulk_match_job.OUT_FILE)
    for read in (archive, archive / "a.parquet", out):
        with pytest.raises(PipelineError, match="is part of the archive"):
            bulk_match_job.match_in_process(filter_set, read, "rows", out)
    assert len(list(archive.iterdir())) == 3


def test_a_cache_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    with pytest.raises(PipelineError, match=r"cannot write the index of the filters to .*cache.*XDG_CACHE_HOME"):
        keep([1], [parse("a = 1")], tmp_path / "cache" / "filters")


def test_a_file_that_was_compacted_away_is_said_with_what_to_do(filter_set: FilterSet, tmp_path: Path) -> None:
    archive = event_archive.open_archive(archive_of_records(tmp_path / "archive"))
    for file in (tmp_path / "archive").rglob("*.parquet"):
        file.unlink()
    with pytest.raises(PipelineError, match=r"a file of the archive is gone .*: start the job again"):
        list(archive.read(["channel"]))
