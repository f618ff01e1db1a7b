"""Compiled loops: how a loop is compiled (on first use, never on import, and cached on disk).

Owns the marks of loops that are always compiled, and makes the functions of `loop_source` known to numba, so that
compiled loops can call them. It does not depend on channels and touches no socket. Importing it imports numba.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, cast

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import event, types
from numba.extending import intrinsic, overload

from shoal.wire.compiled_cache import keep
from shoal.wire.loop_source import (
    MALFORMED,
    NEED_MORE,
    PADDING_BYTES,
    Bytes,
    Function,
    Marked,
    Records,
    follow_marks,
    hash_pair,
    hash_words,
    is_line_end,
    load_u64,
    padded,
    read_length,
    same_words,
    tail_mask,
)

__all__ = [
    "MALFORMED",
    "NEED_MORE",
    "PADDING_BYTES",
    "Bytes",
    "Records",
    "announce_compilations",
    "background_kernel",
    "compilation_announced",
    "hash_pair",
    "hash_words",
    "is_line_end",
    "kernel",
    "load_u64",
    "padded",
    "part",
    "read_length",
    "same_words",
    "stamped",
    "tail_mask",
]

_logger: Final = logging.getLogger("shoal")
"""Compilations are logged under this name, not under that of this module: it means nothing to users."""


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


@intrinsic
def _load_u64(_context: Any, array: Any, _index: Any) -> Any:
    signature = types.uint64(array, types.intp)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        word = ir.IntType(64)
        pointer = builder.bitcast(builder.gep(base, [arguments[1]]), word.as_pointer())
        return builder.load(pointer, align=1)

    return signature, codegen


_load: Final = cast(Callable[[Bytes, int], np.uint64], _load_u64)


def _know(marked: Marked) -> None:
    """Lets numba compile a marked function wherever a loop calls it."""
    options: Any = {"boundscheck": False, "error_model": "numpy", **({"forceinline": True} if marked.inline else {})}
    overload(marked.function, jit_options=options, strict=False)(lambda *_, **__: marked.source)


_know(Marked(load_u64, lambda data, at: _load(data, at), inline=True))
follow_marks(_know)
