"""Calls of compiled functions by their address.

Owns how a compiled function becomes an address, and the call. A compiled function contains all others that it calls,
and the compiler goes through the whole of it anew; with a dozen of them one above the other that takes minutes. What is
called by its address is compiled once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from inspect import signature
from typing import Any, Final, cast

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from shoal.wire.rawbytes import stamped

_WORD: Final = ir.IntType(64)


class Addressed:
    """A function of whole numbers that is compiled when somebody asks for its address, or loaded from the cache."""

    def __init__(self, function: Callable[..., int]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    @cached_property
    def address(self) -> int:
        """Where the compiled function is."""
        arguments = (types.int64,) * len(signature(self._function).parameters)
        compiled = CFunc(self._function, (arguments, types.int64), {}, {"nopython": True, "boundscheck": False})
        stamped(compiled, self._function)
        compiled.compile()
        return int(cast(int, compiled.address))


def _caller(count: int) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_WORD, [_WORD] * count)
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    if count == 3:

        @intrinsic
        def call_3(_context: Any, address: Any, a: Any, b: Any, c: Any) -> Any:
            return types.int64(*[types.int64] * 4), codegen

        return call_3

    @intrinsic
    def call_5(_context: Any, address: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        return types.int64(*[types.int64] * 6), codegen

    return call_5


call_3: Final = _caller(3)
"""(address, three numbers): calls a function of three numbers."""

call_5: Final = _caller(5)
"""The same with five."""
