"""Filters as columns, for contenders that match with a table: NumPy, Polars and DuckDB.

Owns the translation. A column holds one test on one attribute for all filters that have it: lower bounds, upper bounds,
equal values, prefixes, and so on. The user of a column chooses the value for filters without the test. Filters that
need more than this (alternatives, `!=`, absence) are rejected.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from shoal.filters.constraints import Constraint, Unlike
from shoal.filters.filter import Filter
from shoal.filters.ranges import Numbers, OneOf
from shoal.filters.strings import Strings
from shoal.filters.values import MARKS, NUMBER_MAX, NUMBER_MIN, Number, Value
from shoal.filters.views import ADDRESS, FOLDED, base_of, value_of
from shoal.filters.wildcards import STAR
from shoal.lab.bench.contender import BenchError

Array: TypeAlias = NDArray[Any]


class Test(StrEnum):
    """A test on an attribute."""

    LOW = "low"
    HIGH = "high"
    EQUAL = "equal"
    PREFIX = "prefix"
    SUFFIX = "suffix"
    CONTAINS = "contains"
    LIKE = "like"
    ANY = "any"
    """Equal to one element of an array."""
    UNLIKE = "unlike"
    """A number that the attribute is not."""


NUMERIC: Final = frozenset((Test.LOW, Test.HIGH))
PATTERNS: Final = frozenset((Test.PREFIX, Test.SUFFIX, Test.CONTAINS, Test.LIKE))
ARRAYS: Final = frozenset(("tags",))
"""Attributes that are arrays in the loads."""
NOT_THERE: Final = -1
"""Code in a column: the filter does not have the test."""
_VIEWS: Final = {FOLDED: "folded_", ADDRESS: "address_"}
UNKNOWN: Final = -2
"""Code of a string that no filter contains."""


class FilterColumn(msgspec.Struct):
    """One test on one attribute."""

    attribute: str
    test: Test
    rows: Array
    """The filters that have the test."""
    values: Array
    """Their values: numbers, codes of strings, or the strings themselves for patterns."""
    codes: dict[Value, int]
    """For EQUAL and ANY: the code of each string."""

    @property
    def name(self) -> str:
        """The unique name of the column in a table."""
        return f"{base_of(self.attribute)}_{_VIEWS.get(self.attribute[-1], '')}{self.test}"

    def dense(self, count: int, otherwise: Value) -> Array:
        """A value for each of `count` filters, with `otherwise` for those without the test."""
        whole = np.full(count, otherwise, self.values.dtype)
        whole[self.rows] = self.values
        return whole

    def code(self, value: Any) -> int:
        """For EQUAL: the code of the value in an event."""
        return UNKNOWN if value is None else self.codes.get(value, UNKNOWN)

    @property
    def ends(self) -> tuple[Number, Number]:
        """For numbers: a value below and one above the values of all filters."""
        if self.values.dtype.kind == "f":
            return -np.inf, np.inf
        info = np.iinfo(self.values.dtype)
        return info.min, info.max

    def operand(self, event: dict[str, Any]) -> Value:
        """The operand for an event, for columns in which filters without the test have the value `passing`.

        For an absent attribute it is a value that only those filters pass.
        """
        if self.test is Test.ANY:
            raise BenchError("an array has an operand for each element")
        value: Value | None = event.get(self.attribute)
        if value is None and self.attribute.endswith(MARKS):
            value = value_of(event, self.attribute)
        if self.test is Test.EQUAL:
            return self.code(value)
        if self.test is Test.UNLIKE:
            return UNKNOWN if value is None else value
        if self.test in NUMERIC:
            return self.ends[self.test is Test.HIGH] if value is None else value
        if value is None:
            raise BenchError(f"an event without {self.attribute}, which a pattern needs here")
        return value

    @property
    def passing(self) -> Value:
        """The value of a filter without the test, if all events should pass it."""
        if self.test in (Test.EQUAL, Test.ANY, Test.UNLIKE):
            return NOT_THERE
        if self.test is Test.LIKE:
            return STAR
        return self.ends[self.test is Test.HIGH] if self.test in NUMERIC else ""

    def operands(self, event: dict[str, Any]) -> list[int]:
        """For ANY: the codes of the elements, and that of filters without the test."""
        return [NOT_THERE, *map(self.code, event.get(self.attribute) or ())]

    @property
    def failing(self) -> Value:
        """The value of a filter without the test, if no event should pass it. For numbers and EQUAL."""
        return NOT_THERE if self.test is Test.EQUAL else self.ends[self.test is Test.LOW]

    def everywhere(self, count: int) -> bool:
        """Whether each of `count` filters has the test."""
        return len(self.rows) == count


def columns_of(filters: list[Filter]) -> list[FilterColumn]:
    """The tests of all filters, in the order of the attributes."""
    found: dict[tuple[str, Test], tuple[list[int], list[Value]]] = {}
    for row, each in enumerate(filters):
        if len(each.conjunctions) != 1:
            raise BenchError("columns cannot hold a filter with alternatives")
        for attribute, constraint in each.conjunctions[0].constraints:
            for test, value in _tests(constraint):
                if attribute in ARRAYS:
                    test = Test.ANY
                rows, values = found.setdefault((attribute, test), ([], []))
                rows.append(row)
                values.append(value)
    return [_column(attribute, test, *found[attribute, test]) for attribute, test in sorted(found)]


def _tests(constraint: Constraint) -> list[tuple[Test, Value]]:
    match constraint:
        case Numbers(low, high, ()):
            bounds = ((Test.LOW, low, NUMBER_MIN), (Test.HIGH, high, NUMBER_MAX))
            return [(test, bound) for test, bound, end in bounds if bound != end]
        case Unlike(True, strings, (number,)) if strings == Strings():
            return [(Test.UNLIKE, number)]
        case Strings(prefix=prefix, wildcards=(pattern,)):
            return [*([(Test.PREFIX, prefix)] if prefix else []), (Test.LIKE, pattern)]
        case OneOf((value,)) if isinstance(value, str):
            return [(Test.EQUAL, value)]
        case Strings(prefix=prefix, suffix=suffix, contains=contains) if constraint == Strings(
            prefix=prefix, suffix=suffix, contains=contains[:1]
        ):
            patterns = (Test.PREFIX, prefix), (Test.SUFFIX, suffix), (Test.CONTAINS, "".join(contains))
            return [(test, pattern) for test, pattern in patterns if pattern]
    raise BenchError(f"a column cannot hold {constraint}")


def _column(attribute: str, test: Test, rows: list[int], values: list[Any]) -> FilterColumn:
    codes: dict[Value, int] = {}
    if test in PATTERNS:
        array = np.array(values, dtype=object)
    elif test in (Test.EQUAL, Test.ANY):
        array = np.array([codes.setdefault(value, len(codes)) for value in values], dtype=np.int32)
    else:
        array = _narrowed(values)
    return FilterColumn(attribute, test, np.array(rows, dtype=np.int64), array, codes)


def _narrowed(values: list[Number]) -> Array:
    """32-bit integers if all values fit, which are twice as fast to scan; otherwise float64."""
    if all(isinstance(value, int) and abs(value) < 2**31 - 1 for value in values):
        return np.array(values, dtype=np.int32)
    return np.array(values, dtype=np.float64)
