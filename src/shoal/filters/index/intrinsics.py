"""Arrays by address: how a kernel sees many arrays for the price of one.

Owns the step from an address to an array inside a compiled loop. Handing an array over from Python costs about 100
ns, and an index has dozens of them; so kernels are handed one array of addresses. Whoever fills it in keeps what the
addresses point to alive.
"""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray  # type: ignore[attr-defined]
from numba.core import cgutils, types
from numba.extending import intrinsic

from shoal.wire.rawbytes import part


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
"""How many of the lowest bits of a 64-bit word that is not 0 are 0."""


swap_bytes: Final = cast(Any, _swap_bytes)
"""A 64-bit word with its bytes in the opposite order."""

copy_bytes: Final = cast(Any, _copy_bytes)
"""(to, source, size): copies bytes from one address to another, as fast as the machine can: a loop takes three times
as long for a few thousand words."""


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
    """The integers at an address."""
    return carray(pointer(address), (length,), np.int64)


@part
def f64_at(address: int, length: int) -> Any:
    """The floats at an address."""
    return carray(pointer(address), (length,), np.float64)


@part
def whole(number: Any) -> int:
    """A number of any width as a signed 64-bit integer: mixing signed and unsigned ones makes floats."""
    return np.int64(number)  # type: ignore[return-value]
