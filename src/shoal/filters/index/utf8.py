"""UTF-8: whether bytes from the wire are a text.

Owns the test. Only texts that the index does not know are tested, for those that it knows are texts; and most of the
others are ASCII, which is seen eight bytes at a time.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.filters.index.intrinsics import u8_at, whole
from shoal.filters.index.kernel_context import FAR
from shoal.wire.rawbytes import kernel, load_u64, part, tail_mask

_HIGH_BITS: Final = np.uint64(0x8080808080808080)


@part
def is_utf8(data: int, start: int, length: int) -> bool:
    """Whether some bytes of padded data, which is given by its address, are UTF-8."""
    words, done, high = u8_at(data, FAR), 0, np.uint64(0)
    while done + 8 <= length:
        high |= load_u64(words, start + done)
        done += 8
    if done < length:
        high |= load_u64(words, start + done) & tail_mask(length - done)
    return bool(high & _HIGH_BITS == np.uint64(0)) or is_utf8_by_bytes(data, start, length)


@kernel
def is_utf8_by_bytes(data: int, start: int, length: int) -> bool:
    """The same byte by byte: no longer form than needed, no surrogates, nothing above U+10FFFF."""
    text, at, end = u8_at(data, FAR), start, start + length
    while at < end:
        first = whole(text[at])
        if first < 0x80:
            at += 1
            continue
        if not 0xC2 <= first <= 0xF4:
            return False
        more = 1 if first < 0xE0 else (2 if first < 0xF0 else 3)
        if at + more >= end:
            return False
        low = 0xA0 if first == 0xE0 else (0x90 if first == 0xF0 else 0x80)
        high = 0x9F if first == 0xED else (0x8F if first == 0xF4 else 0xBF)
        for i in range(1, more + 1):
            if not low <= whole(text[at + i]) <= high:
                return False
            low, high = 0x80, 0xBF
        at += more + 1
    return True
