"""Parts: an index is taken apart by a selector, and put together again.

Owns the choice of records by their ids, and the translation of records from one index's numbers of names and strings
to another's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.filters.index import hash_tables as texts
from shoal.filters.index import record_format as records
from shoal.filters.index.hash_tables import Texts
from shoal.filters.index.intrinsics import whole
from shoal.filters.index.record_format import get_bits, item_words, put_bits
from shoal.filters.index.uniting import Records
from shoal.wire.rawbytes import kernel


@kernel
def _select(words: Any, ends: Any, ids: Any, id_ends: Any, wanted: Any, out: Any) -> int:
    """Copies the records that have a wanted id, with those ids; how many records."""
    made = 0
    for record in range(len(ends) - 1):
        to = out.id_ends[made]
        for i in range(id_ends[record], id_ends[record + 1]):
            if wanted[i]:
                out.ids[to] = ids[i]
                to += 1
        if to > out.id_ends[made]:
            word = out.ends[made]
            for i in range(ends[record], ends[record + 1]):
                out.words[word] = words[i]
                word += 1
            made += 1
            out.ends[made], out.id_ends[made] = word, to
    return made


def select(given: Records, wanted: npt.NDArray[np.bool_]) -> Records:
    """The records of the ids that are wanted: one truth for each of `given.ids`."""
    out = Records._make(np.zeros_like(column) for column in given)
    made = int(_select(*given, wanted, out))
    return Records(
        out.words[: out.ends[made]], out.ends[: made + 1], out.ids[: out.id_ends[made]], out.id_ends[: made + 1]
    )


@kernel
def _translate(words: Any, ends: Any, names: Any, strings: Any) -> None:
    for record in range(len(ends) - 1):
        at, end = ends[record], ends[record + 1]
        while at < end:
            operator = whole(words[at]) & 0xFF
            words[at + 1] = names[words[at + 1]]
            if records.EQ_STRING <= operator <= records.BELOW:
                put_bits(words, at + 2, np.uint64(strings[get_bits(words, at + 2, 2)]), 2)
            elif operator == records.UNLIKE:
                put_bits(words, at + 3, np.uint64(strings[get_bits(words, at + 3, 2)]), 2)
            elif operator == records.IN_STRINGS:
                for i in range(whole(words[at + 2])):
                    put_bits(words, at + 3 + 2 * i, np.uint64(strings[get_bits(words, at + 3 + 2 * i, 2)]), 2)
            at += item_words(words, at)


@kernel
def _intern_all(into: Any, from_data: Any, from_ends: Any, codes: Any) -> None:
    for code in range(len(codes)):
        start = whole(from_ends[code])
        length = whole(from_ends[code + 1]) - start
        codes[code] = texts.intern_text(whole(into.ctypes.data), whole(from_data.ctypes.data), start, length)


def intern_all(into: Texts, other: Texts) -> npt.NDArray[np.int64]:
    """Takes all strings of another table in; their numbers here, by their numbers there."""
    into.reserve(len(other), int(other.counters[texts.USED]))
    codes = np.zeros(len(other), np.int64)
    _intern_all(into.addresses(), other.data, other.ends, codes)
    return codes


def translate(given: Records, names: npt.NDArray[np.int64], strings: npt.NDArray[np.int64]) -> Records:
    """The same records with other numbers of names and strings."""
    words = given.words.copy()
    _translate(words, given.ends, names, strings)
    return given._replace(words=words)
