"""Links one object file (ELF, x86-64) to code that runs wherever it is loaded.

Owns the few relocations that position-independent code without calls to other libraries has. Anything else is refused:
the loops call nothing and have no writable data.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELOCATION: Final = struct.Struct("<QQq")
_X86_64: Final = 62
_SYMBOLS, _RELOCATIONS, _NO_BITS = 2, 4, 8
_ALLOCATED: Final = 2
_RELATIVE_32: Final = frozenset((2, 4))
"""R_X86_64_PC32 and R_X86_64_PLT32: 32 bits, relative to their own place."""


class LinkError(Exception):
    """The object file has something that the loops should not have."""


class Linked(NamedTuple):
    """Code and constants, and where the function begins."""

    code: bytes
    entry: int


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


def link(data: bytes, function: str) -> Linked:
    """Lays out the sections of an object file and resolves the references between them."""
    header = _HEADER.unpack_from(data)
    if header[0][:4] != b"\x7fELF" or header[2] != _X86_64:
        raise LinkError("not an object file for x86-64")
    sections = [_Section(*_SECTION.unpack_from(data, header[6] + header[11] * index)) for index in range(header[12])]
    placed: dict[int, int] = {}
    code = bytearray()
    for index, section in enumerate(sections):
        if section.flags & _ALLOCATED and section.kind not in (_NO_BITS,) and section.size:
            code += bytes(-len(code) % max(section.alignment, 1))
            placed[index] = len(code)
            code += data[section.offset : section.offset + section.size]
    table = next(section for section in sections if section.kind == _SYMBOLS)
    names = sections[table.link].offset
    symbols = [_SYMBOL.unpack_from(data, table.offset + at) for at in range(0, table.size, _SYMBOL.size)]

    def name_of(symbol: tuple[int, ...]) -> str:
        start = names + symbol[0]
        return data[start : data.index(b"\0", start)].decode()

    def address_of(symbol: tuple[int, ...]) -> int:
        if symbol[3] not in placed:
            raise LinkError(f"{function} refers to {name_of(symbol)!r}")
        return placed[symbol[3]] + symbol[4]

    for section in sections:
        if section.kind != _RELOCATIONS or section.info not in placed:
            continue
        if sections[section.info].name and _is_frame(data, sections, header[13], section.info):
            continue
        for at in range(section.offset, section.offset + section.size, _RELOCATION.size):
            offset, info, addend = _RELOCATION.unpack_from(data, at)
            symbol, kind = symbols[info >> 32], info & 0xFFFFFFFF
            if kind not in _RELATIVE_32:
                raise LinkError(f"{function} has a relocation of type {kind} to {name_of(symbol)!r}")
            place = placed[section.info] + offset
            struct.pack_into("<i", code, place, address_of(symbol) + addend - place)
    entry = next(symbol for symbol in symbols if name_of(symbol) == function)
    return Linked(bytes(code), address_of(entry))


def _is_frame(data: bytes, sections: list[_Section], names: int, index: int) -> bool:
    """Whether a section describes stack frames, for debuggers and exceptions."""
    start = sections[names].offset + sections[index].name
    return data[start : start + 9] == b".eh_frame"
