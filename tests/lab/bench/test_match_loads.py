"""The loads of `shoal bench match` are as described."""

from __future__ import annotations

import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from shoal.filters.language import parse
from shoal.filters.ranges import Numbers, OneOf
from shoal.filters.strings import Strings
from shoal.lab.bench.contender import BenchError
from shoal.lab.bench.loads import hard, iot, quotes, stock, strings
from shoal.lab.bench.loads.load import NAMES, MatchLoad, make

LINES = """\
[class,'STOCK'],[symbol,'AAPL'],[open,63.30],[high,64.25],[low,62.05],[close,64.00],[volume,10924200],[date,'28-Dec-04']
[class,'STOCK'],[symbol,'AAPL'],[open,64.80],[high,65.15],[low,62.88],[close,63.16],[volume,9990900],[date,'27-Dec-04']"""
OTHER = "[symbol,'YHOO'],[class,'STOCK'],[open,1],[high,2],[low,1],[close,2],[volume,7],[date,'1-May-96']\n\n"


def hits(load: MatchLoad, events: int) -> float:
    """The share of the filters that an event matches, on average."""
    found = sum(each.matches(event) for each in load.filters for event in load.events[:events])
    return found / events / len(load.filters)


@pytest.mark.parametrize("name", NAMES)
def test_filters_are_canonical_and_depend_on_the_seed(name: str) -> None:
    load = make(name, 400, 50, seed=7)
    assert (len(load.filters), len(load.events)) == (400, 50)
    for each in load.filters:
        assert parse(str(each)) == each
    again, other = make(name, 400, 50, seed=7), make(name, 400, 50, seed=8)
    assert (again.filters, again.events) == (load.filters, load.events)
    assert other.filters != load.filters
    assert other.events != load.events


def test_stock_draws_the_templates_with_the_papers_probabilities() -> None:
    load = make("stock", 20_000, 100, seed=1)
    drawn = Counter(tuple(name for name, _ in each.conjunctions[0].constraints) for each in load.filters)
    expected = {
        ("class", "high", "symbol"): 0.20,
        ("class", "low", "symbol"): 0.20,
        ("class", "symbol", "volume"): 0.20,
        ("class", "symbol"): 0.34,
        ("class", "volume"): 0.05,
        ("class",): 0.01,
    }
    assert drawn.keys() == expected.keys()
    for shape, share in expected.items():
        assert drawn[shape] / 20_000 == pytest.approx(share, abs=0.012)
    assert all(set(event) == {"class", "symbol", *quotes.NUMBERS, "date"} for event in load.events)


def test_a_quarter_of_the_stock_subscribers_asks_for_stocks_without_a_publisher() -> None:
    published = stock.publications(1, None)
    assert (len(published), len(published["AAAA"])) == (stock.SYMBOLS, stock.DAYS)
    silent = 0
    for each in (filters := stock.draw(20_000, published, seed=1)):
        symbol = each.conjunctions[0].constraint("symbol")
        silent += isinstance(symbol, OneOf) and symbol.values[0] not in published
    assert silent / len(filters) == pytest.approx(stock.ZERO_TRAFFIC, abs=0.01)


def test_stock_thresholds_are_values_of_the_stocks_own_quotes() -> None:
    published = quotes.generate(["AAAA", "AAAB"], 50, np.random.default_rng(1))
    highs = {quote["high"] for quote in published["AAAA"]}
    for each in stock.draw(500, published, seed=1):
        text = str(each)
        if "high >" in text and "'AAAA'" in text:
            assert float(text.split("high > ")[1].split(" ")[0]) in highs


@pytest.mark.parametrize("name", ["directory", "archive"])
def test_quotes_are_read_from_a_directory_or_an_archive(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "AAPL").write_text(LINES)
    (folder / "YHOO").write_text(OTHER)
    path = folder
    if name == "archive":
        path = tmp_path / "quotes.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            archive.add(folder, "demo")
    found = quotes.read(path)
    assert {symbol: len(each) for symbol, each in found.items()} == {"AAPL": 2, "YHOO": 1}
    first = found["AAPL"][0]
    assert first["open"] == 63.3
    assert first["close"] == 64
    assert isinstance(first["close"], int)
    assert list(first) == ["class", "symbol", "open", "high", "low", "close", "volume", "date"]
    load = make("stock", 100, 10, seed=1, quotes=path)
    assert len(load.events) == 3


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("", "no quotes"), ("[class,'STOCK'", "line 1: not a quote"), ("[class,'STOCK']", "without close, high")],
)
def test_lines_that_are_no_quotes_are_rejected(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(BenchError, match=complaint):
        quotes.read(tmp_path)


def test_a_missing_path_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="cannot read quotes"):
        quotes.read(tmp_path / "nothing")


def test_generated_quotes_are_plausible() -> None:
    made = quotes.generate(quotes.symbols(3, {"AAAA"}), 200, np.random.default_rng(1))
    assert list(made) == ["AAAB", "AAAC", "AAAD"]
    for quote in made["AAAC"]:
        opened, high, low, close, volume = (quote[name] for name in quotes.NUMBERS)
        assert 0 < low <= min(opened, close)  # type: ignore[operator]
        assert max(opened, close) <= high  # type: ignore[operator]
        assert isinstance(volume, int)


def test_hard_has_no_equality_and_little_selectivity_in_one_predicate() -> None:
    load = make("hard", 3_000, 100, seed=1)
    sizes = Counter(len(each.conjunctions[0].constraints) for each in load.filters)
    assert sizes.keys() == set(hard.PREDICATES)
    for each in load.filters:
        for _, constraint in each.conjunctions[0].constraints:
            assert isinstance(constraint, Numbers)
            width = min(constraint.high, hard.VALUES - 1) - max(constraint.low, 0) + 1
            assert 0.02 <= width / hard.VALUES <= 0.22
    assert all(tuple(event) == hard.ATTRIBUTES for event in load.events)
    assert hits(load, 100) == pytest.approx(0.00065, rel=0.4)


def test_iot_has_upper_thresholds_on_sensors_that_are_often_absent() -> None:
    load = make("iot", 2_000, 200, seed=1)
    for each in load.filters:
        constraints = each.conjunctions[0].constraints
        assert 1 <= len(constraints) <= iot.PREDICATES_MAX
        assert all(
            isinstance(constraint, Numbers) and constraint == Numbers(high=constraint.high)
            for _, constraint in constraints
        )
    assert sum(map(len, load.events)) / len(load.events) == pytest.approx(30, abs=2)
    assert 0.002 < hits(load, 50) < 0.01


def test_strings_has_patterns_of_every_kind_and_moderate_length() -> None:
    load = make("strings", 4_000, 100, seed=1)
    patterns: dict[str, list[str]] = {"prefix": [], "suffix": [], "contains": [], "equal": []}
    for each in load.filters:
        for _, constraint in each.conjunctions[0].constraints:
            if isinstance(constraint, OneOf):
                patterns["equal"].append(str(constraint.values[0]))
            else:
                assert isinstance(constraint, Strings)
                patterns["prefix"] += filter(None, [constraint.prefix])
                patterns["suffix"] += filter(None, [constraint.suffix])
                patterns["contains"] += constraint.contains
    for kind, (least, most) in strings.LENGTHS.items():
        assert len(patterns[kind]) > 500
        assert min(map(len, patterns[kind])) >= least
        assert max(map(len, patterns[kind])) <= most
    assert 0 < len(patterns["equal"]) < 400
    assert 0.001 < hits(load, 50) < 0.02
