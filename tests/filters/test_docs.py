"""The page on filters is true: its tables, examples and limits."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import shoal.filters
from shoal.errors import EmptyFilterError, FilterError
from shoal.filters import Event, Poset, parse
from shoal.filters.index import record_format
from shoal.limits import DEFAULT_LIMITS, Limits

PAGE = (Path(__file__).parents[2] / "docs" / "filters.md").read_text()


def rows_below(heading: str) -> list[list[str]]:
    """The cells of the table that follows a heading, without its head."""
    lines = PAGE[PAGE.index(heading) :].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| ---"))
    table = lines[first + 1 :]
    end = next(number for number, line in enumerate(table) if not line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[:end]]


def test_every_spelling_of_the_table_is_read() -> None:
    read = 0
    for infix, paper, *_ in rows_below("## The language"):
        texts = [text for text in re.findall(r"`([^`]+)`", f"{infix} {paper}") if " " in text or text.startswith("[")]
        for text in texts:
            parse(text)
            read += 1
    assert read >= 15


EVENTS: dict[str, Event] = {'`{"a": 1}`': {"a": 1}, '`{"a": 2}`': {"a": 2}, '`{"a": "x"}`': {"a": "x"}, "`{}`": {}}


@pytest.mark.parametrize("row", rows_below("### Missing attributes"), ids=lambda row: row[0])
def test_missing_attributes_are_as_the_table_says(row: list[str]) -> None:
    for text, answer in zip(("a = 1", "a != 1", "not a = 1", "a absent", "a exists"), row[1:], strict=True):
        assert parse(text).matches(EVENTS[row[0]]) == (answer == "yes"), text


def test_the_error_is_shown_as_it_is_printed() -> None:
    with pytest.raises(FilterError) as caught:
        parse("volume >")
    assert str(caught.value) in PAGE


@pytest.mark.parametrize("name", ["a.b", "x-1.2", "_", '"my name"', '"größe"', '"and"', '"a""b"', "A1_"])
def test_names_are_as_the_page_says(name: str) -> None:
    assert parse(f"{name} = 1").matches({name.strip('"').replace('""', '"'): 1})


@pytest.mark.parametrize("name", ["1a", "a..b", ".a", "a-", "a.-b", "größe", "and", "True", "a b", "$a", "a:b"])
def test_other_names_need_quotes(name: str) -> None:
    with pytest.raises(FilterError):
        parse(f"{name} = 1")
    assert parse(f'"{name}" = 1').matches({name: 1})


def test_the_names_of_the_page_are_exported() -> None:
    assert {"AdvertisementTable", "Poset", "from_cloudevents"} <= set(shoal.filters.__all__)
    assert f"at most {record_format.NAMES_MAX:,} different names" in PAGE


BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SHOWN = re.compile(r"  # (.*)$")


def test_the_programs_of_the_page_run_and_give_the_results_in_their_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = 0
    for block in BLOCKS:
        if "async with" in block:
            continue
        lines = block.splitlines()
        for statement in ast.parse(block).body:
            comment = SHOWN.search(lines[(statement.end_lineno or 1) - 1])
            if isinstance(statement, ast.Expr) and comment is not None:
                assert repr(eval(ast.unparse(statement), names)) == comment[1]
                shown += 1
            else:
                exec(ast.unparse(statement), names)
    assert shown >= 15


def test_the_limits_are_those_of_the_code() -> None:
    rows = rows_below("### Alternatives")
    written = {name.strip(" `"): int(figure.replace(",", "")) for name, figure, _ in rows}
    assert written == {name: getattr(DEFAULT_LIMITS, name) for name in Limits.__struct_fields__ if "filter_" in name}


def test_all_white_space_of_the_page_is_read() -> None:
    assert parse("a\t=\n1\r\nand\f b\v=\xa02") == parse("a = 1 and b = 2")


def test_other_statements_of_the_page_hold() -> None:
    assert parse("a >= 5 and a != 5 and a < 9.0") == parse("a > 5 and a < 9")
    with pytest.raises(EmptyFilterError, match="contradict"):
        parse("a > 5 and a < 3")
    assert parse("a not in (1, 'x')").matches({"a": 2})
    with pytest.raises(EmptyFilterError, match="contradict"):
        parse("a != 1 and a != 'x'")
    one, other = parse("a < 5 or a >= 5"), parse("a < 7 or a >= 7")
    poset = Poset()
    poset.insert(one, "ann")
    poset.insert(other, "bob")
    assert one.equal(other)
    assert poset.roots == {one, other}
