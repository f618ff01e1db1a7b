"""`shoal bench match` and `shoal bench quotes`, so small that only the form of their results can be judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from shoal import cli
from shoal.filters.language import parse
from shoal.lab.bench import match, match_churn
from shoal.lab.bench.contender import BenchError
from shoal.lab.bench.filter_columns import columns_of
from shoal.lab.bench.loads.load import make
from shoal.lab.bench.match_index import fill
from shoal.lab.bench.match_others import OTHERS, NaiveMatcher
from shoal.lab.bench.matcher import Ids

"""The first one compiles the kernels of the index, unless they are in the cache."""

OURS = ("shoal", "shoal-slices", "shoal-slices-each", "shoal-many")


def facts_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(("bench", *words, "--json")) == 0
    (line,) = capsys.readouterr().out.splitlines()
    facts: dict[str, Any] = json.loads(line)
    return facts


@pytest.mark.parametrize("workload", ["stock", "hard", "iot", "strings"])
def test_a_small_run_has_a_row_for_every_contender_and_size(workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--workload", workload, "--subscriptions", "1200", "--rounds", "1", "--run-seconds", "0.01")
    facts = facts_of(capsys, "match", *words)
    assert facts["name"] == "match"
    assert facts["machine"]["cores"] >= 1
    others = [name for name in OTHERS if (workload, name) != ("strings", "numpy")]
    assert [(row["subscriptions"], row["contender"]) for row in facts["rows"]] == [
        (size, name) for size in (1000, 1200) for name in (*OURS, *others)
    ]
    for row in facts["rows"]:
        for key in ("events_per_s", "cpu_us_per_event", "bytes_per_subscription", "inserts_per_s", "checked_events"):
            assert row[key] > 0
        assert row["matches_per_event"] >= 0
        assert (row["inserts_one_by_one_per_s"] is None) == (row["contender"] not in OURS)
    last = {row["contender"]: row for row in facts["rows"]}
    for name in others:
        for key, ours in (("vs", "shoal-many"), ("each_vs", "shoal")):
            ratio = last[ours]["events_per_s"] / last[name]["events_per_s"]
            assert facts["ratios"][f"{key}_{name}"] == pytest.approx(ratio)
    if workload == "strings":
        assert facts["workload"]["numpy"].startswith("left out")
        assert "vs_numpy" not in facts["ratios"]


def test_the_figures_are_shown_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("bench", "match", "--subscriptions", "200", "--rounds", "1", "--run-seconds", "0.01")
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert "shoal-slices" in shown
    assert "vs_polars" in shown


class WrongMatcher(NaiveMatcher):
    """A contender that misses a subscription."""

    name = "wrong"

    def ids(self, event: bytes) -> Ids:
        return super().ids(event)[1:]


def test_a_contender_that_finds_other_ids_fails_the_measurement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(OTHERS, "numpy", WrongMatcher)
    assert (
        cli.main(("bench", "match", "--subscriptions", "500", "--rounds", "1", "--run-seconds", "0.01", "--json")) == 1
    )
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "wrong finds" in streams.err
    assert "only one of them has" in streams.err


@pytest.mark.parametrize("name", OTHERS)
def test_a_contender_finds_what_filter_matches_finds(name: str) -> None:
    for load in (make(kind, 300, 40, seed=5) for kind in ("stock", "hard", "iot", "strings")):
        if OTHERS[name].cannot(load.name):
            continue
        contender = OTHERS[name](load.filters)
        for event in load.events:
            expected = [place for place, each in enumerate(load.filters) if each.matches(event)]
            assert sorted(contender.ids(msgspec.msgpack.encode(event)).tolist()) == expected


@pytest.mark.parametrize("text", ["a != 3", "a absent", "a = 1 or b = 2", "a in ('x', 'y')", "a = 1", "a >= 'x'"])
def test_filters_that_columns_cannot_hold_are_rejected(text: str) -> None:
    with pytest.raises(BenchError):
        columns_of([parse(text)])


def test_churn_has_percentiles_with_and_without_changes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--workload", "churn", "--subscriptions", "1000", "--rounds", "1", "--run-seconds", "0.02")
    facts = facts_of(capsys, "match", *words)
    rows = {row["contender"]: row for row in facts["rows"]}
    assert tuple(rows) == match_churn.KINDS
    assert rows["quiet"]["changes_per_s"] == 0
    for kind in (match_churn.THREAD, match_churn.INTERLEAVED):
        assert rows[kind]["changes_per_s"] == pytest.approx(match_churn.CHANGES_PER_S, rel=0.5)
    for row in rows.values():
        assert 0 < row["match_us_p50"] <= row["match_us_p99"] <= row["match_us_p999"] <= row["match_us_max"]
        assert row["checked_events"] == match_churn.CHECKED
    ratio = rows["churn"]["match_us_p999"] / rows["quiet"]["match_us_p999"]
    assert facts["ratios"]["match_p999_churn_vs_quiet"] == pytest.approx(ratio)


def test_changes_never_run_out() -> None:
    filters = make("stock", 300, 1, seed=1).filters
    index, _ = fill(filters[:100], 1)
    churn = match_churn.Churn(index, filters[:100], filters[100:], seed=1)
    churn.prepare(0.002)
    for _ in range(11):
        churn.change()
    assert len(churn.times_us) == 11
    churn.finish()
    assert len(index) == len(churn.held) == 100


def test_all_quotes_are_matched_and_a_sample_is_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for symbol in ("AAPL", "YHOO"):
        (tmp_path / symbol).write_text(
            "\n".join(
                f"[class,'STOCK'],[symbol,'{symbol}'],[open,{day}.50],[high,{day + 1}.00],[low,{day}.25],"
                f"[close,{day}.75],[volume,{1000 * day}],[date,'1-May-96']"
                for day in range(1, 151)
            )
        )
    facts = facts_of(capsys, "quotes", "--quotes", str(tmp_path), "--subscriptions", "500")
    assert (facts["quotes"], facts["stocks"], facts["subscriptions"]) == (300, 2, 500)
    assert facts["checked_events"] == 200
    rows = {row["contender"]: row for row in facts["rows"]}
    assert rows["shoal"]["deliveries"] == rows["shoal-many"]["deliveries"] == facts["deliveries"] > 0
    assert facts["ratios"]["vs_naive"] > 0


def test_ids_are_compared_in_any_order() -> None:
    naive = NaiveMatcher(make("stock", 300, 1, seed=1).filters)
    events = [msgspec.msgpack.encode(event) for event in make("stock", 1, 5, seed=1).events]
    checked, event_s = match.check(naive, lambda event: np.flip(naive.ids(event)), events)
    assert checked == 5
    assert event_s > 0
