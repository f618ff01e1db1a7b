"""Profiles: the paper's example to the digit, samples that do not depend on how an archive is divided, and overlaps."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.cli import main
from shoal.errors import PipelineError
from shoal.filters.event_batches import to_arrow
from shoal.filters.events import parse_event
from shoal.filters.index import Index, event_table
from shoal.filters.language import parse
from shoal.filters.values import Event
from shoal.pipeline import bulk_match, profiles, profiles_job
from shoal.pipeline.filter_sets import keep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

"""The first test compiles the kernels, if nothing else has done so before."""

PUBLICATIONS = [
    "[class,'STOCK'],[volume,0]",
    "[class,'STOCK'],[volume,10]",
    "[class,'STOCK'],[volume,20]",
    "[class,'SPORTS'],[type,'racing']",
    "[class,'STOCK'],[volume,100]",
    "[class,'STOCK'],[volume,500]",
]
CANDIDATES = {
    "[class,=,'STOCK']": 0b110111,
    "[class,=,'STOCK'],[volume,>,15]": 0b110100,
    "[class,=,'STOCK'],[volume,>,150]": 0b100000,
    "[class,=,'SPORTS']": 0b001000,
}
COVERING = {
    "[class,=,'STOCK'],[volume,>,50]": 0b110000,
    "[class,=,'STOCK'],[volume,<,5]": 0b000001,
    "[class,=,'MOVIES']": 0b000000,
}
"""Table I of the paper."""


def vectors(texts: list[str], events: Sequence[Event]) -> profiles.Bits:
    index = Index()
    index.insert_many(range(len(texts)), [parse(text) for text in texts])
    table = event_table(events)
    column = pa.array([table[row] for row in range(len(table))], pa.binary())
    return profiles.combine_blocks([profiles.block_bits(column, 0, index)], np.arange(len(texts)), len(events))


def test_the_example_of_the_paper() -> None:
    events = [parse_event(text) for text in PUBLICATIONS]
    bits = vectors([*CANDIDATES, *COVERING], events)
    assert bits[:, 0].tolist() == [*CANDIDATES.values(), *COVERING.values()]
    covered = np.bitwise_or.reduce(bits[len(CANDIDATES) :], axis=0)
    assert int(covered[0]) == 0b110001
    stock = bits[0]
    assert 3.0 * int(np.bitwise_count(stock).sum()) / 6 == 2.5
    assert profiles.more(stock, covered) == 2
    assert profiles.more_rate(bits[:1], covered, 6, 3.0).tolist() == [1.0]
    assert int((covered | stock)[0]) == 0b110111


def archive(rows: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {"a": rng.integers(100, size=rows), "b": rng.integers(100, size=rows), "file": ["f"] * rows, "row": range(rows)}
    )


QUERY = bulk_match.query_of(pa.schema([("a", pa.int64()), ("b", pa.int64())]), "ids", ["a", "b"])


def sampled(parts: list[pa.Table], count: int, seed: int) -> profiles.Sample:
    found = [
        batch
        for part in parts
        for batch in profiles.sample_batches(part.combine_chunks().to_batches(), QUERY, count, seed)
    ]
    return profiles.merge_samples(found, count)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 60), st.integers(1, 40), st.integers(0, 5), st.lists(st.integers(0, 60), max_size=3))
def test_a_sample_is_the_same_however_the_archive_is_divided(rows: int, count: int, seed: int, cuts: list[int]) -> None:
    table = archive(rows)
    bounds = sorted({0, rows, *(min(cut, rows) for cut in cuts)})
    parts = [table.slice(first, last - first) for first, last in itertools.pairwise(bounds)]
    whole, divided = sampled([table], count, seed), sampled(parts, count, seed)
    assert divided.rows.equals(whole.rows)
    assert divided.publications == rows
    assert whole.rows.num_rows == min(rows, count)
    if count >= rows:
        found = [msgspec.msgpack.decode(event) for event in whole.rows["event"].to_pylist()]
        assert sorted(map(str, found)) == sorted(map(str, table.select(["a", "b"]).to_pylist()))


def test_a_sample_is_spread_over_the_archive_and_another_with_another_seed() -> None:
    table = archive(4000)
    hashes = profiles.hashes_of(table.combine_chunks().to_batches()[0], QUERY.keys, 1)
    assert len(np.unique(hashes)) == 4000
    lowest = np.argsort(hashes)[:400]
    quarters = np.bincount(lowest // 1000, minlength=4)
    assert quarters.min() > 60
    assert set(lowest) != set(np.argsort(profiles.hashes_of(table.to_batches()[0], QUERY.keys, 2))[:400])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 130), st.floats(0, 1), st.integers(0, 9))
def test_overlaps_are_what_counting_one_by_one_gives(filters: int, samples: int, least: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dense = rng.random((filters, samples)) < 0.3
    bits = packed(dense)
    ids = np.arange(100, 100 + filters)
    found = profiles.overlap_block(ids, bits, 0, 0, least).to_pylist()
    expected = []
    for a in range(filters):
        for b in range(a + 1, filters):
            both, either = int((dense[a] & dense[b]).sum()), int((dense[a] | dense[b]).sum())
            if both and both >= least * either:
                expected.append((100 + a, 100 + b, both, int(dense[a].sum()) - both, int(dense[b].sum()) - both))
    assert [(row["a"], row["b"], row["both"], row["only_a"], row["only_b"]) for row in found] == expected
    assert all(row["jaccard"] == row["both"] / (row["both"] + row["only_a"] + row["only_b"]) for row in found)


def packed(dense: npt.NDArray[np.bool_]) -> profiles.Bits:
    wide = np.zeros((len(dense), -(-dense.shape[1] // 64) * 64), np.bool_)
    wide[:, : dense.shape[1]] = dense
    return np.packbits(wide, axis=1, bitorder="little").view(np.uint64)


FILTERS = {1: "a < 30", 2: "a < 20 and b > 10", 5: "b >= 90", 9: "a > 1000"}


def run(folder: Path, out: Path, spark: SparkSession | None, **more: Any) -> profiles_job.ProfileResult:
    parsed = [parse(text) for text in FILTERS.values()]
    kept = keep(list(FILTERS), parsed, folder / "filters")
    options = profiles_job.ProfileOptions(samples=1500, **more)
    return profiles_job.run(kept, FILTERS, folder / "archive", options, out, spark)


def made_archive(folder: Path) -> None:
    (folder / "archive").mkdir(parents=True)
    table = archive(5000).select(["a", "b"])
    for part in range(3):
        pq.write_table(table.slice(part * 2000, 2000), folder / "archive" / f"{part}.parquet")


def test_the_job_gives_the_same_in_process_and_on_spark(tmp_path: Path, spark: SparkSession) -> None:
    made_archive(tmp_path)
    here = run(tmp_path, tmp_path / "here", None, rate=100.0)
    there = run(tmp_path, tmp_path / "there", spark, rate=100.0)
    assert here == there
    assert (here.filters, here.matching_filters, here.samples, here.publications) == (4, 3, 1500, 5000)
    for file in here.files:
        assert pq.read_table(tmp_path / "here" / file).equals(pq.read_table(tmp_path / "there" / file))
    table = pq.read_table(tmp_path / "here" / profiles_job.PROFILE_FILE)
    assert table.schema.equals(profiles.PROFILE_SCHEMA)
    assert table.schema.metadata[b"shoal.profiles.samples"] == b"1500"
    rows = {row["filter"]: row for row in table.to_pylist()}
    assert rows[1]["share"] == pytest.approx(0.3, abs=0.05)
    assert rows[1]["rate"] == pytest.approx(100 * rows[1]["matched"] / 1500)
    assert rows[9]["matched"] == 0
    assert len(rows[1]["bits"]) == -(-1500 // 8)
    pairs = pq.read_table(tmp_path / "here" / profiles_job.OVERLAP_FILE).to_pylist()
    contained = next(pair for pair in pairs if (pair["a"], pair["b"]) == (1, 2))
    assert contained["only_b"] == 0
    assert contained["both"] == rows[2]["matched"]


def test_messages_have_a_rate_of_their_own_and_the_bytes_of_their_payload(tmp_path: Path) -> None:
    began = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    count = 101
    (tmp_path / "archive").mkdir()
    table = pa.table(
        {
            "channel": ["c"] * count,
            "sequence": range(count),
            "published_at": pa.array(
                [began + dt.timedelta(seconds=number / 10) for number in range(count)], pa.timestamp("us", "UTC")
            ),
            "payload": pa.array([b"x" * 100] * count, pa.binary()),
            "attributes": [json.dumps({"a": 1, "b": 95})] * count,
        }
    )
    pq.write_table(table, tmp_path / "archive" / "all.parquet")
    found = run(tmp_path, tmp_path / "out", None)
    assert found.rate == pytest.approx(10.1)
    row = pq.read_table(tmp_path / "out" / profiles_job.PROFILE_FILE).to_pylist()[0]
    assert row["rate"] == pytest.approx(10.1)
    assert row["bytes_per_s"] == pytest.approx(10.1 * (100 + 1 + 2 * 2 + 2))
    published = pq.read_table(tmp_path / "out" / profiles_job.SAMPLE_FILE)["published_us"].to_pylist()
    assert published == sorted(published)


@pytest.mark.parametrize("known", [0, 2])
def test_rows_without_a_time_are_sampled_all_the_same(tmp_path: Path, known: int) -> None:
    count = 3
    began = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    times = [began + dt.timedelta(seconds=number) if number < known else None for number in range(count)]
    (tmp_path / "archive").mkdir()
    for part in range(2):  # the second one has no times at all
        table = pa.table(
            {
                "published_at": pa.array(times if part == 0 else [None] * count, pa.timestamp("us", "UTC")),
                "payload": [b"x"] * count,
                "attributes": ['{"a": 1}'] * count,
            }
        )
        pq.write_table(table, tmp_path / "archive" / f"{part}.parquet")
    found = run(tmp_path, tmp_path / "out", None)
    assert (found.publications, found.samples) == (2 * count, 2 * count)
    assert found.rate == (2 * count if known else None)


def test_too_many_bits_and_an_empty_archive_are_said(tmp_path: Path) -> None:
    made_archive(tmp_path)
    kept = keep([1], [parse("a < 30")], tmp_path / "filters")
    options = profiles_job.ProfileOptions(samples=2**40)
    with pytest.raises(PipelineError, match="take fewer samples"):
        profiles_job.run(kept, [1], tmp_path / "archive", options, tmp_path / "out")
    pq.write_table(pa.Table.from_batches([to_arrow([{"a": 1}])]).slice(1), tmp_path / "none.parquet")
    with pytest.raises(PipelineError, match="no publications"):
        profiles_job.run(kept, [1], tmp_path / "none.parquet", profiles_job.ProfileOptions(), tmp_path / "out")


def test_the_command_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_archive(tmp_path)
    path = tmp_path / "filters.txt"
    path.write_text("\n".join(f"{number}: {text}" for number, text in FILTERS.items()))
    words = ["pipeline", "profiles", "--filters", str(path), "--archive", str(tmp_path / "archive")]
    assert main([*words, "--sample", "500", "--out", str(tmp_path / "out"), "--in-process", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["samples"], facts["matching_filters"], facts["rate"]) == (500, 3, None)
    assert main([*words, "--sample", "0", "--out", str(tmp_path / "out"), "--in-process"]) == 1
