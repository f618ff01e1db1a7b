"""Intrinsics: the few things that a numba kernel cannot express by itself.

Owns arrays at addresses, byte swaps and copies, vector comparisons of 32 bytes, prefetches, and calls of compiled
functions by address. Knows nothing of filters.

Kernels get arrays by address because passing an array from Python costs about 100 ns, and an index has dozens of them.
A kernel is therefore passed the address of one array that holds the addresses of all others. The caller that
fills in that array keeps the others alive.

The vector instructions exist on every processor: the compiler splits a vector into as many registers as the machine
needs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from inspect import signature
from typing import Any, Final, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray  # type: ignore[attr-defined]
from numba.core import cgutils, types
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from shoal.wire.raw_bytes import part, stamped

VECTOR_BYTES: Final = 32
"""Bytes that one vector comparison takes."""
LANES: Final = 64
"""Bytes that are compared with one interval together."""
_BYTES: Final = ir.VectorType(ir.IntType(8), VECTOR_BYTES)
_LANES: Final = ir.VectorType(ir.IntType(8), LANES)
_I32: Final = ir.IntType(32)
_WORD: Final = ir.IntType(64)
UNBOUNDED: Final = 1 << 40
"""The length of an array at an address where the length does not matter."""


@intrinsic
def _pointer(_context: Any, address: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), codegen


@intrinsic
def _trailing_zeros(_context: Any, word: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


@intrinsic
def _count_bits(_context: Any, word: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), codegen


@intrinsic
def _swap_bytes(_context: Any, word: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bswap(arguments[0])

    return types.uint64(types.uint64), codegen


@intrinsic
def _copy_bytes(_context: Any, to: Any, source: Any, size: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        to, source, size = arguments
        byte = ir.IntType(8).as_pointer()
        places = builder.inttoptr(to, byte), builder.inttoptr(source, byte)
        cgutils.raw_memcpy(builder, *places, size, 1)  # type: ignore[no-untyped-call]
        return size

    return types.int64(types.int64, types.int64, types.int64), codegen


pointer: Final = cast(Any, _pointer)
trailing_zeros: Final = cast(Any, _trailing_zeros)
"""The number of trailing zero bits of a 64-bit word that is not 0."""
count_bits: Final = cast(Any, _count_bits)
"""The number of bits of a 64-bit word that are 1."""
swap_bytes: Final = cast(Any, _swap_bytes)
"""A 64-bit word with its bytes in the opposite order."""
copy_bytes: Final = cast(Any, _copy_bytes)
"""(to, source, size): copies bytes from one address to another with memcpy, three times as fast as a loop for a few
thousand words."""


@part
def u8_at(address: int, length: int) -> Any:
    """The bytes at an address."""
    return carray(pointer(address), (length,), np.uint8)


@part
def u16_at(address: int, length: int) -> Any:
    """The 16-bit words at an address."""
    return carray(pointer(address), (length,), np.uint16)


@part
def u32_at(address: int, length: int) -> Any:
    """The 32-bit words at an address."""
    return carray(pointer(address), (length,), np.uint32)


@part
def u64_at(address: int, length: int) -> Any:
    """The 64-bit words at an address."""
    return carray(pointer(address), (length,), np.uint64)


@part
def i64_at(address: int, length: int) -> Any:
    """The signed 64-bit words at an address."""
    return carray(pointer(address), (length,), np.int64)


@part
def f64_at(address: int, length: int) -> Any:
    """The floats at an address."""
    return carray(pointer(address), (length,), np.float64)


@part
def i64(number: Any) -> int:
    """A number as a signed 64-bit integer. numba makes a float where signed and unsigned integers mix."""
    return np.int64(number)  # type: ignore[return-value]


def _vector_at(builder: Any, address: Any, kind: Any = _BYTES) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _all_of(builder: Any, byte: Any, kind: Any = _BYTES) -> Any:
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), byte, _I32(0))
    everywhere = ir.Constant(ir.VectorType(_I32, kind.count), [0] * kind.count)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), everywhere)


def _between(order: str) -> Any:
    """An intrinsic (lows, highs, byte) -> 32 bits: bit i says whether low byte i, the byte and high byte i are in this
    order."""

    @intrinsic
    def between(_context: Any, lows: Any, highs: Any, byte: Any) -> Any:
        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            lows, highs, byte = arguments
            value = _all_of(builder, byte)
            above = builder.icmp_unsigned(order, _vector_at(builder, lows), value)
            below = builder.icmp_unsigned(order, value, _vector_at(builder, highs))
            return builder.zext(builder.bitcast(builder.and_(above, below), _I32), ir.IntType(64))

        return types.uint64(types.int64, types.int64, types.uint8), codegen

    return between


within: Final = cast(Any, _between("<="))
"""(lows, highs, byte): bit i says whether low i <= byte <= high i, for 32 bytes at each of two addresses."""
strictly_within: Final = cast(Any, _between("<"))
"""The same with low i < byte < high i."""


@intrinsic
def _lanes_within(_context: Any, at: Any, low: Any, high: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        at, low, high = arguments
        above = builder.sub(_vector_at(builder, at, _LANES), _all_of(builder, low, _LANES))
        inside = builder.icmp_unsigned("<=", above, _all_of(builder, builder.sub(high, low), _LANES))
        return builder.bitcast(inside, _WORD)

    return types.uint64(types.int64, types.uint8, types.uint8), codegen


lanes_within: Final = cast(Any, _lanes_within)
"""(address, low, high): bit i says whether low <= byte i <= high, for 64 bytes at an address. `low` is not above
`high`."""


@intrinsic
def _prefetch(_context: Any, address: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
        )
        builder.call(function, [builder.inttoptr(arguments[0], byte), _I32(0), _I32(3), _I32(1)])
        return ir.Constant(ir.IntType(64), 0)

    return types.int64(address), codegen


prefetch: Final = cast(Any, _prefetch)
"""Starts to load the bytes at an address into the cache."""


class AddressedFunction:
    """A function of 64-bit integers that is compiled, or loaded from the cache, when its address is first needed.

    A compiled function contains all functions that it calls, and the compiler optimizes the whole of it again; with a
    dozen levels that takes minutes. A function that is called by its address is compiled once.
    """

    def __init__(self, function: Callable[..., int]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    @cached_property
    def address(self) -> int:
        """The address of the compiled function."""
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
"""(address, three integers): calls a function of three integers."""
call_5: Final = _caller(5)
"""The same with five."""
