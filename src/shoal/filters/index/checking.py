"""Checking: what callers of an index hand over besides filters and events.

Owns what an id, a size and the answer of a selector are. FilterError says what is wrong with something else.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import FilterError
from shoal.filters.index.ids import ID_MAX
from shoal.filters.index.results import Ids


def id_of(number: object) -> int:
    """The id that an integer of any kind is. FilterError for everything else; a boolean is a mistake, too."""
    own = number
    if type(own) is not int:
        try:
            own = -1 if isinstance(number, bool) else operator.index(number)  # type: ignore[arg-type]
        except TypeError:
            own = -1
    if 0 <= own <= ID_MAX:
        return own
    raise FilterError(f"the id of a subscription is an integer from 0 to {ID_MAX}, not {number!r}")


def size_of(size: object) -> int:
    """How many ids a bitmap is for."""
    try:
        return id_of(size)
    except FilterError as error:
        raise FilterError(f"the size of a bitmap is an integer from 0 to {ID_MAX}, not {size!r}") from error


def ids_of(numbers: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Ids as an array of integers. FilterError if one is none."""
    try:
        ids = np.asarray(numbers)
    except ValueError:
        ids = np.empty((0, 0))
    if ids.ndim != 1:
        raise FilterError("the ids of subscriptions are a sequence of integers, or an array of one dimension")
    booleans = isinstance(numbers, list | tuple) and any(type(number) is bool for number in numbers)
    if ids.dtype.kind not in "iu" or booleans:  # too large, of several widths, or no integers
        return np.array([id_of(number) for number in numbers], np.int64)
    if len(ids) and not (ids.min() >= 0 and ids.max() <= ID_MAX):
        raise FilterError(f"the ids of subscriptions are integers from 0 to {ID_MAX}")
    return ids.astype(np.int64)


def parts_of(selector: Callable[[Ids], npt.NDArray[np.integer[Any]]], ids: Ids) -> npt.NDArray[np.int64]:
    """The parts to which a selector sends ids. FilterError if its answer is not one part for each."""
    try:
        chosen = np.asarray(selector(ids))
    except ValueError as error:
        raise FilterError(f"the selector must give an array with one integer for each id: {error}") from error
    if chosen.shape != ids.shape:
        raise FilterError(
            f"the selector must give one integer for each id: for {len(ids)} ids it gave an array "
            f"of the shape {chosen.shape}"
        )
    if len(chosen) and chosen.dtype.kind not in "biu":
        raise FilterError(f"the selector must give integers, the numbers of parts; it gave {chosen.dtype}")
    parts = chosen.astype(np.int64)
    if parts.min(initial=0) < 0:
        raise FilterError("the selector gave a negative part")
    return parts
