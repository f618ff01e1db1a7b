"""Snapshots: an index in a file, mapped and used in milliseconds by any process.

Owns the file's form: a magic number, the length of a table of contents, a checksum of these and the table, the table
(msgpack: name, type, length, where), and arrays at multiples of 64 bytes, exactly as they are in memory. A file that is
being written has another name, its own, until it is complete: of several that write to one path at a time, the last to
finish wins. A mapped index can be changed: its pages are copied when they are written to, and the file stays as it is.

What is read is checked for its form, layout and length, and the table for each byte; the arrays are not: kernels
believe what stands there.
"""

from __future__ import annotations

import os
import secrets
import zlib
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.errors import SnapshotError
from shoal.filters.index.segment_layout import VERSION

MAGIC: Final = b"SHOALIX%d" % VERSION
_ALIGNED: Final = 64
_HEADER_BYTES: Final = 24
"""The magic number, the length of the table, the checksum: eight bytes each."""


_Place = Annotated[int, msgspec.Meta(ge=0)]


class _Part(msgspec.Struct, array_like=True):
    name: str
    kind: Annotated[str, msgspec.Meta(pattern="^[<|][iu][1248]$")]
    length: _Place
    start: Annotated[_Place, msgspec.Meta(multiple_of=_ALIGNED)]


def write(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Writes arrays to a file, which is there when it is complete."""
    contents: list[_Part] = []
    at = 0
    for name, array in arrays.items():
        contents.append(_Part(name, array.dtype.str, len(array), at))
        at += -(-array.nbytes // _ALIGNED) * _ALIGNED
    table = msgspec.msgpack.encode(contents)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(8)}.part")
    try:
        with unfinished.open("xb") as file:
            file.write(_header(table) + table)
            base = _start(len(table))
            for part, array in zip(contents, arrays.values(), strict=True):
                file.seek(base + part.start)
                file.write(np.ascontiguousarray(array).data)
            file.truncate(max(base + at, file.tell()))
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def read(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Maps the arrays of a file. SnapshotError if it is not one that `write` wrote; FileNotFoundError if there is
    none."""
    try:
        block = np.memmap(path, np.uint8, "c")
    except FileNotFoundError:
        raise
    except (ValueError, OSError) as error:  # empty, or nothing that can be mapped
        raise SnapshotError(f"{path} is empty, or is no file that can be read: {error}") from error
    if len(block) < _HEADER_BYTES or block[:8].tobytes() != MAGIC:
        raise SnapshotError(f"{path} is no snapshot of an index, or of another version")
    size = int.from_bytes(block[8:16].tobytes(), "little")
    table = block[_HEADER_BYTES : _HEADER_BYTES + min(size, len(block))].tobytes()
    if block[:_HEADER_BYTES].tobytes() != _header(table):
        raise SnapshotError(f"{path} is damaged, or cut short: its table of contents is not what was written")
    try:
        contents = msgspec.msgpack.decode(table, type=list[_Part])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SnapshotError(f"{path} is damaged: its table of contents cannot be read") from error
    base = _start(size)
    arrays: dict[str, npt.NDArray[Any]] = {}
    for part in contents:
        start = base + part.start
        stop = start + part.length * np.dtype(part.kind).itemsize
        if stop > len(block):
            raise SnapshotError(f"{path} is cut short: it ends before {part.name}")
        arrays[part.name] = block[start:stop].view(part.kind).view(np.ndarray)
    return arrays


def _header(table: bytes) -> bytes:
    """What stands before a table of contents."""
    named = MAGIC + len(table).to_bytes(8, "little")
    return named + zlib.crc32(named + table).to_bytes(8, "little")


def _start(table_bytes: int) -> int:
    return -(-(_HEADER_BYTES + table_bytes) // _ALIGNED) * _ALIGNED
