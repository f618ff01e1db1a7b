"""The names of a reader's filters: what they are by number is what a dictionary would say."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.bus import filter_names
from shoal.bus.filter_names import FEW, SPARSE, FilterNames
from shoal.engine.messages import pack

CHANGES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, FEW, 10 * FEW]), st.integers(0, 5)), max_size=30)


def of(names: FilterNames, numbers: Iterable[int]) -> tuple[str, ...]:
    return names.of(pack([*numbers]))


@pytest.fixture(params=["list", "array", "array, without NumPy"])
def _kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are in a list; in an array, even if they are few; in a list, because NumPy is not installed."""
    if request.param != "list":
        monkeypatch.setattr(filter_names, "ARRAY_MIN", 7)
        monkeypatch.setattr(filter_names, "FOUND_MIN", 3)
    if request.param == "array, without NumPy":
        monkeypatch.setattr(filter_names, "_numpy", lambda: None)


@given(CHANGES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("_kind")
def test_names_are_those_of_a_dictionary(changes: list[tuple[int, int, int]]) -> None:
    names, model, last = FilterNames(), dict[int, str](), 0
    for count, others, drops in changes:
        first = last + others + 1  # numbers in between belong to other readers
        numbers = [*range(first, first + count)]
        last = first + count
        names.add(numbers, [f"filter {number}" for number in numbers])
        model |= {number: f"filter {number}" for number in numbers}
        for number in [*model][:drops]:
            names.drop(number)
            del model[number]
        if model:
            assert of(names, model) == tuple(model.values())
            assert of(names, [*model][:1]) == (next(iter(model.values())),)


@pytest.mark.parametrize("installed", [True, False])
def test_a_reader_of_very_many_filters(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not installed:
        monkeypatch.setattr(filter_names, "_numpy", lambda: None)
    names = FilterNames()
    for first in range(1, 20_001, 1000):
        names.add([*range(first, first + 1000)], [f"filter {number}" for number in range(first, first + 1000)])
    assert (names._array is not None) == installed
    asked = [20_000, 3, 11_111, *range(5000, 5100)]
    assert of(names, asked) == tuple(f"filter {number}" for number in asked)
    assert of(names, asked)[0] is of(names, [20_000])[0], "no name is copied"


def test_a_reader_whose_filters_come_and_go_takes_memory_for_those_that_it_has() -> None:
    names = FilterNames()
    for number in range(1, 100 * FEW):
        names.add([number], ["name"])
        if number > 10:
            names.drop(number - 10)
    assert len(names._names) <= SPARSE * 20 + FEW
