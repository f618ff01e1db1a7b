"""The loops of an agent, bound to tables: as Python, and as machine code.

Owns the list of the loops that Python calls (`SIGNATURES`), and both ways to call them. They work on the same arrays,
so a scanner can change from one to the other between two calls. Which one is in use is decided in `loop_image`.

Machine code takes addresses and numbers, 64 bits each. An array is its address and its length. Those of the tables are
in one block, whose address is passed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from shoal.channels.telemetry import pattern_kernel, scan_kernel, table_queries, tables
from shoal.channels.telemetry.rows import Rows
from shoal.channels.telemetry.tables import Tables
from shoal.wire.loop_source import wrapping

Array: TypeAlias = npt.NDArray[Any]

TABLES: Final = "tables"
"""In `SIGNATURES`: the tables. `int` is a number, `word` one without sign; any other word is the kind of an array."""

SIGNATURES: Final[Mapping[str, tuple[Callable[..., int], tuple[str, ...]]]] = {
    "scan_frames": (scan_kernel.scan_frames, ("uint8", "cursor", TABLES, "meter")),
    "find_meter_row": (scan_kernel.find_meter_row, ("word", "word")),
    "fill_slots": (tables.fill_slots, (TABLES,)),
    "set_stream": (tables.set_stream, (TABLES, "uint8", "int", "word", "word")),
    "set_watched": (tables.set_watched, (TABLES, "uint8", "int", "int", "int")),
    "find_channels": (table_queries.find_channels, (TABLES, "uint8", "int32", "int32")),
    "match_channels": (table_queries.match_channels, (TABLES, "uint8", "int", "bool")),
    "gather_names": (table_queries.gather_names, (TABLES, "int32", "int32", "uint8")),
    "find_stream_of": (table_queries.find_stream_of, (TABLES, "uint8", "int", "word")),
    "list_streams": (table_queries.list_streams, (TABLES, "int", "uint64", "uint64", "int64", "bool")),
    "forget": (table_queries.forget, (TABLES, "int", "int32", "int32")),
    "match_names": (pattern_kernel.match_names, ("uint8", "int32", "uint8", "int", "bool")),
}
"""Each loop with its function and its arguments."""

DTYPES: Final = {
    "cursor": scan_kernel.CURSOR,
    "meter": scan_kernel.METER,
    **{name: np.dtype(name) for name in ("uint8", "int32", "int64", "uint64", "bool")},
}


TABLE_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "head": tables.HEAD,
    "channels": tables.CHANNEL,
    "channel_slots": DTYPES["uint64"],
    "arena": DTYPES["uint8"],
    "streams": tables.STREAM,
    "stream_slots": DTYPES["uint64"],
    "active_channels": DTYPES["int32"],
    "active_streams": DTYPES["int32"],
    "refuted": tables.REFUTED,
    "secrets": DTYPES["uint8"],
    "scratch": DTYPES["uint8"],
}
"""The arrays of the tables."""


class Loops(Protocol):
    """A way to run the loops."""

    def prepare(self, bound: Tables) -> Any:
        """Tables in the form in which these loops take them. It keeps them alive."""
        ...

    def bind(self, name: str, *arguments: Any) -> Callable[[], int]:
        """A loop with its arguments, for a loop that is called often with the same arrays."""
        ...

    def call(self, name: str, *arguments: Any) -> int:
        """Runs a loop."""
        ...


class PlainLoops:
    """The loops as Python."""

    def prepare(self, bound: Tables) -> Tables:
        """The tables, with rows in place of records."""
        arrays: Iterable[Any] = map(_rows_of_records, bound)
        return Tables(*arrays)

    def bind(self, name: str, *arguments: Any) -> Callable[[], int]:
        """A loop with its arguments; records become rows."""
        function, kinds = SIGNATURES[name]
        prepared = [_as_rows(each, kind) for each, kind in zip(arguments, kinds, strict=True)]

        def run() -> int:
            with wrapping():
                return int(function(*prepared))

        return run

    def call(self, name: str, *arguments: Any) -> int:
        """Runs a loop."""
        return self.bind(name, *arguments)()


def _rows_of_records(array: Any) -> Any:
    return Rows(array) if array.dtype.names else array


def _as_rows(argument: Any, kind: str) -> Any:
    if kind == "word":
        return np.uint64(argument)
    return Rows(argument) if kind in ("cursor", "meter") else argument


class AddressedTables(NamedTuple):
    """Tables for machine code. Computing the addresses takes longer than most loops, so it is done once."""

    bound: Tables
    block: Array
    """The addresses and lengths of the arrays."""
    address: int
    """Of the block."""


class MachineLoops:
    """The loops as machine code, by the addresses of their functions. `memory` holds the code."""

    def __init__(self, addresses: Mapping[str, int], memory: object = None) -> None:
        self._memory = memory
        self._result = ctypes.c_int64()
        self._error = ctypes.c_int64()
        self._results = ctypes.addressof(self._result), ctypes.addressof(self._error)
        self._functions = {}
        for name, (_, kinds) in SIGNATURES.items():
            words = [ctypes.c_int64] * (2 + sum(map(words_of, kinds)))
            # It keeps the interpreter's lock: releasing that would cost more than most calls.
            self._functions[name] = ctypes.PYFUNCTYPE(ctypes.c_int32, *words)(addresses[name])

    def prepare(self, bound: Tables) -> AddressedTables:
        """The tables with their addresses."""
        block = np.array([(_address(array), len(array)) for array in bound], np.int64)
        return AddressedTables(bound, block, _address(block))

    def bind(self, name: str, *arguments: Any) -> Callable[[], int]:
        """A loop with its arguments; the result keeps the arrays alive."""
        words = [*self._results]
        for argument, kind in zip(arguments, SIGNATURES[name][1], strict=True):
            if kind == TABLES:
                words.append(argument.address)
            elif kind in ("int", "word"):
                words.append(int(argument))
            else:
                if argument.dtype != DTYPES[kind] or not argument.flags.c_contiguous:
                    raise ValueError(f"{name} needs contiguous arrays of {kind}")
                words += [_address(argument), len(argument)]
        return partial(self._run, self._functions[name], tuple(words), arguments)

    def _run(self, function: Callable[..., int], words: tuple[int, ...], _kept: object) -> int:
        if function(*words):
            raise RuntimeError("a compiled loop failed")
        return self._result.value

    def call(self, name: str, *arguments: Any) -> int:
        """Runs a loop."""
        return self.bind(name, *arguments)()


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]  # four times as fast as `array.ctypes`
    return address


def words_of(kind: str) -> int:
    """How many numbers an argument is: an array is its address and its length."""
    return 1 if kind in ("int", "word", TABLES) else 2
