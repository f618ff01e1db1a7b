"""Compiled access to raw bytes: unaligned loads, hashing, comparing, RESP lengths.

Owns the byte-level functions shared by the compiled loops of the analyzer and of the filters' index, and how such a
loop is compiled (on first use, never on import, and cached on disk). It does not depend on channels and touches no
socket.

`load_u64` may read up to 7 bytes past the requested range, so every buffer passed to these functions ends with
`PADDING_BYTES` unused bytes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import event, types
from numba.extending import intrinsic

from shoal.wire.compiled_cache import keep

if sys.byteorder != "little":  # the envelope and the word-wise loads below are little-endian
    raise ImportError("the compiled loops need a little-endian machine")

_logger: Final = logging.getLogger("shoal")
"""Compilations are logged under this name, not under that of this module: it means nothing to users."""

PADDING_BYTES: Final = 8
NEED_MORE: Final = -2
MALFORMED: Final = -3

Bytes: TypeAlias = npt.NDArray[np.uint8]
Records: TypeAlias = Any
"""An array of records, or one record; inside a kernel their fields are attributes unknown to type checkers."""
Function = TypeVar("Function", bound=Callable[..., Any])

_PRIME_1: Final = np.uint64(0x9E3779B97F4A7C15)
_PRIME_2: Final = np.uint64(0xD6E8FEB86659FD93)
_FULL: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
_HALF: Final = np.uint64(32)
_CR: Final = 13
_LF: Final = 10
_MINUS: Final = 45
_ZERO: Final = 48
_NINE: Final = 57
_DIGITS_MAX: Final = 18


def kernel(function: Function) -> Function:
    """Marks a compiled loop: compiled at its first call, then loaded from the cache on disk."""
    return cast(Function, stamped(numba.njit(boundscheck=False)(function), function))


def part(function: Function) -> Function:
    """Marks a part of compiled loops: inlined, because passing arrays costs more than the work."""
    return cast(Function, stamped(numba.njit(boundscheck=False, forceinline=True)(function), function))


def background_kernel(function: Function) -> Function:
    """Marks a compiled loop that runs without the interpreter's lock."""
    return cast(Function, stamped(numba.njit(boundscheck=False, nogil=True)(function), function))


def stamped(compiled: Any, function: Callable[..., Any]) -> Any:
    """Caches a loop on disk, with a key that depends on all files that can be inlined into it: numba itself checks only
    the file of the loop, and would keep using outdated parts of other files."""
    stored = getattr(keep(compiled)._cache, "_cache_file", None)
    if stored is not None:
        own = Path(function.__code__.co_filename).parent
        stored._source_stamp = stored._source_stamp, _stamp_of(own), _stamp_of(Path(__file__).parent)
    return compiled


@cache
def _stamp_of(folder: Path) -> int:
    """Changes when a file of a folder does; 0 where there are no files (in an archive)."""
    files = sorted(folder.glob("*.py"))
    return hash(tuple((file.stat().st_mtime_ns, file.stat().st_size) for file in files))


@contextmanager
def compilation_announced() -> Iterator[None]:
    """Logs when a loop is not in the cache, because the start then takes seconds."""
    with event.install_listener("numba:compile", _CompileNotice(logging.INFO, "the loops of agents")):
        yield


@cache
def announce_compilations() -> None:
    """The same for the rest of the process: for a library, whose first caller is unknown."""
    event.register("numba:compile", _CompileNotice(logging.WARNING, "the matching kernels"))  # type: ignore[no-untyped-call]


class _CompileNotice(event.Listener):
    """Notices compilations; numba reports nothing when a loop comes from the cache."""

    said: ClassVar[set[str]] = set()
    """The parts that this process has logged: several listeners may notice the same compilation."""

    def __init__(self, level: int, part: str) -> None:
        self._level = level
        self._part = part

    def on_start(self, _event: Any) -> None:
        """Logs the first compilation of a part."""
        if self._part not in self.said:
            self.said.add(self._part)
            what = f"compiling {self._part}, once on this machine and version"
            _logger.log(self._level, "%s: this takes up to a minute", what)

    def on_end(self, _event: Any) -> None:
        """Nothing to log: the result is in the cache."""


def padded(data: bytes) -> Bytes:
    """A writable array of some bytes with the padding that the loads need."""
    array = np.zeros(len(data) + PADDING_BYTES, np.uint8)
    array[: len(data)] = np.frombuffer(data, np.uint8)
    return array


@intrinsic
def _load_u64(_context: Any, array: Any, _index: Any) -> Any:
    signature = types.uint64(array, types.intp)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        word = ir.IntType(64)
        pointer = builder.bitcast(builder.gep(base, [arguments[1]]), word.as_pointer())
        return builder.load(pointer, align=1)

    return signature, codegen


@intrinsic
def _borrow(_context: Any, array: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        view.meminfo = ir.Constant(view.meminfo.type, None)
        return view._getvalue()

    return array(array), codegen


load_u64: Final = cast(Callable[[Bytes, int], np.uint64], _load_u64)
"""The 8 bytes at an index, little-endian, whatever the alignment."""

borrow: Final = cast(Callable[[Any], Any], _borrow)
"""The same array without its reference count, for use inside a kernel whose caller holds the array. Passing a counted
array costs two atomic operations, and that happens a dozen times per message."""


@part
def tail_mask(length: int) -> np.uint64:
    """Keeps the lowest `length` (1 to 7) bytes of a word."""
    return _FULL >> np.uint64(64 - 8 * length)


@part
def hash_words(data: Bytes, start: int, length: int, seed: np.uint64) -> np.uint64:
    """A 64-bit hash of some bytes. It is not cryptographic: names are compared after a match."""
    value = seed ^ (np.uint64(length) * _PRIME_2)
    at = start
    end = start + length
    while at + 8 <= end:
        value = (value ^ load_u64(data, at)) * _PRIME_1
        value ^= value >> _HALF
        at += 8
    if at < end:
        value = (value ^ (load_u64(data, at) & tail_mask(end - at))) * _PRIME_1
        value ^= value >> _HALF
    value *= _PRIME_2
    return value ^ (value >> _HALF)


@part
def hash_pair(first: np.uint64, second: np.uint64) -> np.uint64:
    """A 64-bit hash of two words."""
    value = (second ^ (first * _PRIME_2)) * _PRIME_1
    value ^= value >> _HALF
    value *= _PRIME_2
    return value ^ (value >> _HALF)


@part
def same_words(left: Bytes, left_at: int, right: Bytes, right_at: int, length: int) -> bool:
    """Whether two stretches of bytes are equal."""
    done = 0
    while done + 8 <= length:
        if load_u64(left, left_at + done) != load_u64(right, right_at + done):
            return False
        done += 8
    if done == length:
        return True
    difference = load_u64(left, left_at + done) ^ load_u64(right, right_at + done)
    return bool((difference & tail_mask(length - done)) == np.uint64(0))


@part
def read_length(data: Bytes, start: int, end: int) -> tuple[int, int]:
    """Parses a RESP length line: the number (-1 for null) and the index after the line.

    As strict as hiredis: digits only, no leading zero, `-1` the only negative number. The number is `NEED_MORE` if the
    line is incomplete at `end`, and `MALFORMED` if it cannot become a length.
    """
    at = start
    value = 0
    while at < end and _ZERO <= data[at] <= _NINE:
        if (at > start and value == 0) or at - start >= _DIGITS_MAX:
            return MALFORMED, start
        value = value * 10 + int(data[at]) - _ZERO
        at += 1
    if at == start and at < end and data[at] == _MINUS:
        if at + 1 < end and data[at + 1] != _ZERO + 1:
            return MALFORMED, start
        value = -1
        at += 2
    elif at == start and at < end:
        return MALFORMED, start
    if at < end and data[at] != _CR:
        return MALFORMED, start
    if at + 1 < end and data[at + 1] != _LF:
        return MALFORMED, start
    if at + 2 > end:
        return NEED_MORE, start
    return value, at + 2


@part
def is_line_end(data: Bytes, at: int) -> bool:
    """Whether CR LF is at an index; both bytes must be in the buffer."""
    return bool(data[at] == _CR and data[at + 1] == _LF)
