"""The names of a reader's filters: what they are by number is what a dictionary would say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.bus.filter_names import FEW, SPARSE, FilterNames

CHANGES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, FEW, 10 * FEW]), st.integers(0, 5)), max_size=30)


@given(CHANGES)
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
            assert names.of([*model]) == tuple(model.values())
            assert names.of([*model][:1]) == (next(iter(model.values())),)


def test_a_reader_whose_filters_come_and_go_takes_memory_for_those_that_it_has() -> None:
    names = FilterNames()
    for number in range(1, 100 * FEW):
        names.add([number], ["name"])
        if number > 10:
            names.drop(number - 10)
    assert len(names._names) <= SPARSE * 20 + FEW
