"""Bulk matching finds what each filter says of each event, in process and on Spark, in both forms of an archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
from shoal.pipeline import matching, matching_job
from shoal.pipeline.filter_sets import FilterSet, attributes_of, keep, opened, read_filters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
"""The first test compiles the kernels, if nothing else has done so before."""

SETTINGS = settings(max_examples=40, deadline=None)

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
    index, attributes = indexed(held), attributes_of(filters)
    whole = to_arrow(events) if in_columns else messages(events).combine_chunks().to_batches()
    batch = whole if isinstance(whole, pa.RecordBatch) else (whole or [None])[0]
    if batch is None:
        return
    if in_columns:
        places = pa.array(range(batch.num_rows), pa.int64())
        batch = pa.RecordBatch.from_arrays(
            [*batch.columns, pa.array(["f"] * batch.num_rows, pa.string()), places],
            names=[*batch.schema.names, "file", "row"],
        )
    parts = [batch.slice(first, cut) for first in range(0, batch.num_rows, cut)]
    said = [sorted(number for number, each in held.items() if each.matches(event)) for event in events]
    counts = matching.sum_counts(matching.match_batches(parts, index, "counts", attributes)).to_pylist()
    assert {row["filter"]: row["matches"] for row in counts} == {
        number: times for number in held if (times := sum(number in ids for ids in said))
    }
    key = "row" if in_columns else "sequence"
    for output in ("ids", "rows"):
        found = [row for each in matching.match_batches(parts, index, output, attributes) for row in each.to_pylist()]
        assert [(row[key], row["filters"]) for row in found] == [(at, ids) for at, ids in enumerate(said) if ids]


def test_the_filters_of_a_file_have_the_ids_that_it_gives_or_the_numbers_of_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "filters.txt"
    path.write_text("# mine\n\nclass = 'STOCK'\n17: volume > 3\n[class,eq,'STOCK'],[volume,>,300000]\n")
    assert list(read_filters(path)) == [3, 17, 5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class = 'STOCK'\nvolume >\n", "line 2"),
        ("2: a = 1\nb = 1\n", "line 2: the id 2 is taken"),
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


def checked(outcome: matching_job.Outcome, output: str) -> None:
    assert (outcome.events, outcome.matches, outcome.filters, outcome.matching_filters) == (4, 6, 4, 3)
    assert dict(outcome.top) == COUNTS
    assert outcome.rows == 3
    assert outcome.output == output


@pytest.mark.parametrize("way", ["in process", "on Spark"])
def test_an_archive_of_columns_is_matched(
    way: str, filter_set: FilterSet, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    archive = archive_of_columns(tmp_path / "archive")

    def run(output: matching.Output) -> pa.Table:
        out = tmp_path / output
        if way == "in process":
            checked(matching_job.match_in_process(filter_set, archive, output, out), output)
        else:
            spark: SparkSession = request.getfixturevalue("spark")
            checked(matching_job.match_on_spark(spark, filter_set, archive, output, out), output)
        return pq.read_table(out / matching_job.OUT_FILE)

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


@pytest.mark.parametrize("way", ["in process", "on Spark"])
def test_an_archive_of_messages_is_matched_by_their_attributes(
    way: str, filter_set: FilterSet, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    archive = archive_of_messages(tmp_path / "archive")
    out = tmp_path / "out"
    if way == "in process":
        checked(matching_job.match_in_process(filter_set, archive, "ids", out), "ids")
    else:
        checked(matching_job.match_on_spark(request.getfixturevalue("spark"), filter_set, archive, "ids", out), "ids")
    found = pq.read_table(out / matching_job.OUT_FILE).sort_by("sequence").to_pylist()
    assert [(row["channel"], row["publisher"], row["sequence"], row["filters"]) for row in found] == [
        ("17", 7, number, ids) for number, ids in enumerate(EXPECTED) if ids
    ]


def test_what_cannot_be_matched_is_said_before_anything_runs(filter_set: FilterSet, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no archive at"):
        matching_job.match_in_process(filter_set, tmp_path / "none", "counts")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PipelineError, match="no Parquet in"):
        matching_job.match_in_process(filter_set, tmp_path / "empty", "counts")
    (tmp_path / "text.parquet").write_text("no Parquet")
    with pytest.raises(PipelineError, match="cannot read the archive"):
        matching_job.match_in_process(filter_set, tmp_path / "text.parquet", "counts")
    pq.write_table(pa.table({"other": [1]}), tmp_path / "other.parquet")
    with pytest.raises(PipelineError, match="no filter asks for an attribute"):
        matching_job.match_in_process(filter_set, tmp_path / "other.parquet", "counts")
