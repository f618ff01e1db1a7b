"""Snapshots: an index in a file that any process can map within milliseconds.

Owns the format of the file: a magic number, the length of a table of contents, a checksum of both and the table, the
table (MessagePack: name, type, length, offset), and arrays at multiples of 64 bytes, exactly as they are in memory.
Never touches what the arrays mean.

A file has a temporary name of its own until it is complete. If several processes write to one path, the last to finish
wins. A mapped index can be changed: its pages are copied on write, and the file stays as it is.

The form, the version and the length of a file are checked, and every byte of its table of contents. The arrays are not
checked: kernels trust them.
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

SNAPSHOT_MAGIC: Final = b"SHOALIX%d" % VERSION
_ALIGNED: Final = 64
_HEADER_BYTES: Final = 24
"""Magic number, length of the table and checksum: eight bytes each."""
_Place = Annotated[int, msgspec.Meta(ge=0)]


class _Part(msgspec.Struct, array_like=True):
    name: str
    kind: Annotated[str, msgspec.Meta(pattern="^[<|][iu][1248]$")]
    length: _Place
    start: Annotated[_Place, msgspec.Meta(multiple_of=_ALIGNED)]


def write(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Writes arrays to a file. The file appears under its name when it is complete."""
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
    """Maps the arrays of a file. SnapshotError if `write` did not write it; FileNotFoundError if it does not exist."""
    try:
        block = np.memmap(path, np.uint8, "c")
    except FileNotFoundError:
        raise
    except (ValueError, OSError) as error:  # empty, or not a regular file
        raise SnapshotError(f"{path} is empty or cannot be mapped ({error})") from error
    if len(block) < _HEADER_BYTES or block[:8].tobytes() != SNAPSHOT_MAGIC:
        raise SnapshotError(
            f"{path} is not a snapshot of an index, or has another version", do="write it again with Index.save"
        )
    size = int.from_bytes(block[8:16].tobytes(), "little")
    table = block[_HEADER_BYTES : _HEADER_BYTES + min(size, len(block))].tobytes()
    if block[:_HEADER_BYTES].tobytes() != _header(table):
        raise SnapshotError(f"{path} is damaged or cut short: the checksum of its table of contents is wrong")
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
            raise SnapshotError(f"{path} is cut short: it ends before the array {part.name}")
        arrays[part.name] = block[start:stop].view(part.kind).view(np.ndarray)
    return arrays


def _header(table: bytes) -> bytes:
    """The bytes before a table of contents."""
    named = SNAPSHOT_MAGIC + len(table).to_bytes(8, "little")
    return named + zlib.crc32(named + table).to_bytes(8, "little")


def _start(table_bytes: int) -> int:
    return -(-(_HEADER_BYTES + table_bytes) // _ALIGNED) * _ALIGNED
