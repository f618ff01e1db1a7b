"""Filters as columns, for those who match with a table: NumPy, Polars and DuckDB.

Owns the translation. A column holds one test on one attribute for all filters that have it: the lower bounds, the upper
bounds, what it must be equal to, what it must begin with, and so on. What a column says of the filters without the test
is up to who uses it. Filters that need more than this (alternatives, `!=`, absence) are refused.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from shoal.bench.contender import BenchError
from shoal.filters.constraints import Constraint
from shoal.filters.filter import Filter
from shoal.filters.ranges import Numbers, OneOf
from shoal.filters.strings import Strings
from shoal.filters.values import NUMBER_MAX, NUMBER_MIN, Number, Value

Array: TypeAlias = NDArray[Any]


class Test(StrEnum):
    """What is asked of an attribute."""

    LOW = "low"
    HIGH = "high"
    EQUAL = "equal"
    PREFIX = "prefix"
    SUFFIX = "suffix"
    CONTAINS = "contains"


NUMERIC: Final = frozenset((Test.LOW, Test.HIGH))
PATTERNS: Final = frozenset((Test.PREFIX, Test.SUFFIX, Test.CONTAINS))
NOT_THERE: Final = -1
"""In a column of codes: the filter has no such test."""
UNKNOWN: Final = -2
"""The code of a string that no filter asks for."""


class Column(msgspec.Struct):
    """One test on one attribute."""

    attribute: str
    test: Test
    rows: Array
    """Which filters have it."""
    values: Array
    """What they say: numbers, codes of strings, or for patterns the strings themselves."""
    codes: dict[Value, int]
    """For EQUAL: the code of each string."""

    @property
    def name(self) -> str:
        """For a table: no other column has it."""
        return f"{self.attribute}_{self.test}"

    def dense(self, count: int, otherwise: Value) -> Array:
        """A value for each of `count` filters: `otherwise` for those without the test."""
        whole = np.full(count, otherwise, self.values.dtype)
        whole[self.rows] = self.values
        return whole

    def code(self, value: Value | None) -> int:
        """For EQUAL: the code of what an event has."""
        return UNKNOWN if value is None else self.codes.get(value, UNKNOWN)

    @property
    def ends(self) -> tuple[Number, Number]:
        """For numbers: below and above all that a filter says."""
        if self.values.dtype.kind == "f":
            return -np.inf, np.inf
        info = np.iinfo(self.values.dtype)
        return info.min, info.max

    def operand(self, event: dict[str, Value]) -> Value:
        """What is compared with a column in which the filters without the test have the end that lets all through.

        For what is absent it is that very end, which lets only those filters through.
        """
        value = event.get(self.attribute)
        if self.test is Test.EQUAL:
            return self.code(value)
        if self.test in NUMERIC:
            return self.ends[self.test is Test.HIGH] if value is None else value
        if value is None:
            raise BenchError(f"an event without {self.attribute}, which a pattern needs here")
        return value

    @property
    def open_end(self) -> Value:
        """What a filter without the test has, so that it lets all through."""
        if self.test is Test.EQUAL:
            return NOT_THERE
        return self.ends[self.test is Test.HIGH] if self.test in NUMERIC else ""

    def everywhere(self, count: int) -> bool:
        """Whether each of `count` filters has the test."""
        return len(self.rows) == count


def columns_of(filters: list[Filter]) -> list[Column]:
    """The tests of all filters, in the order of the attributes."""
    found: dict[tuple[str, Test], tuple[list[int], list[Value]]] = {}
    for row, each in enumerate(filters):
        if len(each.conjunctions) != 1:
            raise BenchError("a filter with alternatives is not for columns")
        for attribute, constraint in each.conjunctions[0].constraints:
            for test, value in _tests(constraint):
                rows, values = found.setdefault((attribute, test), ([], []))
                rows.append(row)
                values.append(value)
    return [_column(attribute, test, *found[attribute, test]) for attribute, test in sorted(found)]


def _tests(constraint: Constraint) -> list[tuple[Test, Value]]:
    match constraint:
        case Numbers(low, high, ()):
            bounds = ((Test.LOW, low, NUMBER_MIN), (Test.HIGH, high, NUMBER_MAX))
            return [(test, bound) for test, bound, end in bounds if bound != end]
        case OneOf((value,)) if isinstance(value, str):
            return [(Test.EQUAL, value)]
        case Strings(prefix=prefix, suffix=suffix, contains=contains) if constraint == Strings(
            prefix=prefix, suffix=suffix, contains=contains[:1]
        ):
            patterns = (Test.PREFIX, prefix), (Test.SUFFIX, suffix), (Test.CONTAINS, "".join(contains))
            return [(test, pattern) for test, pattern in patterns if pattern]
    raise BenchError(f"a column cannot hold {constraint}")


def _column(attribute: str, test: Test, rows: list[int], values: list[Any]) -> Column:
    codes: dict[Value, int] = {}
    if test in PATTERNS:
        array = np.array(values, dtype=object)
    elif test is Test.EQUAL:
        array = np.array([codes.setdefault(value, len(codes)) for value in values], dtype=np.int32)
    else:
        array = _narrowed(values)
    return Column(attribute, test, np.array(rows, dtype=np.int64), array, codes)


def _narrowed(values: list[Number]) -> Array:
    """32-bit integers if that is what they are, which is twice as fast to scan; float64 otherwise."""
    if all(isinstance(value, int) and abs(value) < 2**31 - 1 for value in values):
        return np.array(values, dtype=np.int32)
    return np.array(values, dtype=np.float64)
