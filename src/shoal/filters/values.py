"""Values: what an attribute can be, and how values are ordered.

Owns the three kinds of values, which Python objects are values, their canonical form, and the neighbours of a number.
Never touches attributes, predicates or text.

Numbers are on one line: all 64-bit integers (signed and unsigned) and all finite float64, compared exactly, as Python
does. So every number has a next and a previous one, and a strict bound is a closed bound at its neighbour. Strings are
ordered by code point, which is also the order of their UTF-8 bytes. Booleans are not numbers and have no order.
"""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, TypeAlias

from shoal.limits import DEFAULT_LIMITS, Limits

Number: TypeAlias = int | float
Value: TypeAlias = str | int | float | bool
Event: TypeAlias = Mapping[str, Any]
"""Values by the names of attributes. Several values of one are an array (see `shoal.filters.arrays`), None is absence;
`check_event` says what else is no value."""

INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**64 - 1
NUMBER_MIN: Final = -sys.float_info.max
NUMBER_MAX: Final = sys.float_info.max
MARKS: Final = ("\ufdd0", "\ufdd1")
"""Noncharacters that no attribute's name ends in: see `shoal.filters.views`."""
EXACT_MAX: Final = 2**53
"""Up to this magnitude every integer is a float64. An integral float within it is stored as an int."""


class ValueKind(IntEnum):
    """The kind of a value. Values of different kinds are never equal and have no order."""

    NUMBER = 0
    STRING = 1
    BOOLEAN = 2

    @property
    def word(self) -> str:
        """The word for it after `is` in the language."""
        return self.name.lower()


KINDS: Final[Mapping[str, ValueKind]] = {kind.word: kind for kind in ValueKind}


PLAIN_TYPES: Final = frozenset({str, int, float, bool, type(None)})
"""Types of values that `native` leaves as they are, and of absence."""
_PLAIN: Final[Mapping[type, ValueKind]] = {
    str: ValueKind.STRING,
    int: ValueKind.NUMBER,
    float: ValueKind.NUMBER,
    bool: ValueKind.BOOLEAN,
}


def kind_of(value: Value) -> ValueKind:
    """The kind of a value."""
    if isinstance(value, str):
        return ValueKind.STRING
    return ValueKind.BOOLEAN if isinstance(value, bool) else ValueKind.NUMBER


def kind_in(value: object) -> ValueKind | None:
    """The kind of any object found in an event, after `native`; None if it is not a value."""
    kind = _PLAIN.get(type(value))
    if kind is not None:
        return kind
    return kind_of(value) if isinstance(value, str | int | float) else None


def native(value: Any) -> Any:
    """A number or boolean of another library, such as NumPy, as an int, float or bool; any other object as it is.

    Every value of an event passes here before it is compared, printed or encoded.
    """
    if isinstance(value, str | int | float):
        return value
    numpy = sys.modules.get("numpy")  # without it there are no values of its types
    if numpy is not None and isinstance(value, numpy.bool_):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational):
        nearest = float(value)
        return nearest if nearest == value else value
    return value


def problem_of(value: object) -> str | None:
    """Why an object is not a value, as the end of a sentence that begins with its name; None if it is a value."""
    if isinstance(value, str):
        return None if _is_utf8(value) else "contains a lone surrogate, which UTF-8 cannot encode"
    if isinstance(value, int):
        return None if INTEGER_MIN <= value <= INTEGER_MAX else "is an integer that does not fit in 64 bits"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"is {value}; NaN and infinity are not allowed"
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"is of type {name}; a value is str, int, float or bool"


def problem_of_name(name: object, limits: Limits = DEFAULT_LIMITS) -> str | None:
    """Why an object is not the name of an attribute, as a sentence; None if it is a name."""
    if not isinstance(name, str):
        return f"attribute names are strings, not {type(name).__name__}"
    if not name:
        return "an attribute name must not be empty"
    if not _is_utf8(name):
        return f"the attribute name {name!r} contains a lone surrogate, which UTF-8 cannot encode"
    if name[-1] in MARKS:
        return f"the attribute name {name!r} ends in a noncharacter that names of attributes must not end in"
    if len(name.encode()) > limits.attribute_name_bytes_max:
        return (
            f"an attribute name is {len(name.encode())} bytes long, "
            f"more than attribute_name_bytes_max={limits.attribute_name_bytes_max}"
        )
    return None


def canonical(value: Value) -> Value:
    """The canonical form of a value: plain types, no -0.0, and int for every integral float that an int represents
    exactly."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool):
        return value
    return canonical_number(value)


def canonical_number(value: Number) -> Number:
    """`canonical` for a number."""
    if isinstance(value, int):
        return int(value)
    return int(value) if value.is_integer() and -EXACT_MAX <= value <= EXACT_MAX else float(value)


def succ(number: Number) -> Number | None:
    """The next larger number; None for the largest."""
    if number >= NUMBER_MAX:
        return None
    nearest = float(number)
    above = nearest if nearest > number else math.nextafter(nearest, math.inf)
    if -EXACT_MAX <= number < EXACT_MAX:
        return canonical_number(above)
    following = math.floor(number) + 1
    if INTEGER_MIN <= following <= INTEGER_MAX and following < above:
        return following
    return canonical_number(above)


def pred(number: Number) -> Number | None:
    """The next smaller number; None for the smallest."""
    if number <= NUMBER_MIN:
        return None
    nearest = float(number)
    below = nearest if nearest < number else math.nextafter(nearest, -math.inf)
    if -EXACT_MAX < number <= EXACT_MAX:
        return canonical_number(below)
    preceding = math.ceil(number) - 1
    if INTEGER_MIN <= preceding <= INTEGER_MAX and preceding > below:
        return preceding
    return canonical_number(below)


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
