"""Enough values to decide a question about constraints by trying all of them.

What two constraints accept changes only at the values in their predicates. So a difference between them shows at one of
those numbers or next to it, and in a string composed of their texts with an unused letter between them. If all of these
agree, all values do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shoal.filters.conjunctions import Conjunction, conjunction_of
from shoal.filters.predicates import WILD, Operator, Predicate
from shoal.filters.strings import NUL
from shoal.filters.values import NUMBER_MAX, NUMBER_MIN, Number, Value, pred, succ
from shoal.filters.wildcards import parts_of

STRANGE = "z"
"""A letter that no test writes in a predicate."""


def values_of(predicates: Iterable[Predicate]) -> list[Value]:
    """All values in predicates."""
    named: list[Value] = []
    for predicate in predicates:
        if isinstance(predicate.value, tuple):
            named.extend(predicate.value)
        elif predicate.operator in WILD:
            named.extend(parts_of(str(predicate.value)))
        elif predicate.value is not None and predicate.operator is not Operator.IS:
            named.append(predicate.value)
    return named


def critical_numbers(numbers: Iterable[Number]) -> set[Number]:
    """Numbers, two neighbours of each on both sides, and the ends of the line."""
    found: set[Number] = {NUMBER_MIN, NUMBER_MAX, 0}
    for number in numbers:
        found |= {number, *_walk(number, succ), *_walk(number, pred)}
    return found


def critical_strings(texts: Iterable[str]) -> set[str]:
    """Strings that begin, go on and end with the texts, or just not."""
    known = sorted({"", *texts})
    heads = {variant for text in known for variant in (text, text + NUL, text + "\1", text + STRANGE, _lower(text))}
    joined = {STRANGE.join(("", *known, ""))}
    joined |= {STRANGE.join(("", *(text for text in known if left_out not in text), "")) for left_out in known}
    middles = {"", STRANGE, *joined, *(f"{STRANGE}{text}{STRANGE}" for text in known)}
    return {head + middle + tail for head in heads for middle in middles for tail in known}


def critical_values(predicates: Iterable[Predicate]) -> list[Value | None]:
    """Values of all kinds, and absence, among which a difference between constraints of such predicates shows."""
    named = values_of(predicates)
    numbers = [value for value in named if not isinstance(value, (str, bool))]
    texts = [value for value in named if isinstance(value, str)]
    return [None, False, True, *critical_numbers(numbers), *critical_strings(texts)]


def satisfiable(predicates: Iterable[Predicate]) -> Conjunction:
    """The conjunction of predicates, without those that contradict the ones before them."""
    found = Conjunction()
    for predicate in predicates:
        single = conjunction_of([predicate])
        found = (single and found.meet(single)) or found
    return found


def _walk(number: Number, step: Callable[[Number], Number | None]) -> list[Number]:
    first = step(number)
    second = None if first is None else step(first)
    return [found for found in (first, second) if found is not None]


def _lower(text: str) -> str:
    """A string a little below a text."""
    return text[:-1] + chr(ord(text[-1]) - 1) + STRANGE if text and text[-1] > NUL else ""
