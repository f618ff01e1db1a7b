"""Vectors: 32 bytes at a time, and memory asked for before it is needed.

Owns the few instructions that a compiled loop cannot express otherwise. Any processor has them in one form or another:
the compiler divides a vector into as many as the machine's registers ask for.
"""

from __future__ import annotations

from typing import Any, Final, cast

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

WIDTH: Final = 32
_BYTES: Final = ir.VectorType(ir.IntType(8), WIDTH)
_I32: Final = ir.IntType(32)


def _vector_at(builder: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, _BYTES.as_pointer()), align=1)


def _all_of(builder: Any, byte: Any) -> Any:
    one = builder.insert_element(ir.Constant(_BYTES, ir.Undefined), byte, _I32(0))
    everywhere = ir.Constant(ir.VectorType(_I32, WIDTH), [0] * WIDTH)
    return builder.shuffle_vector(one, ir.Constant(_BYTES, ir.Undefined), everywhere)


def _between(order: str) -> Any:
    """A function (lows, highs, byte) -> 32 bits: which low bytes, by this order, are before a byte that is before the
    high byte."""

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
"""(lows, highs, byte): a bit for each of the 32 bytes at two addresses between which a byte is, or which it equals."""

strictly_within: Final = cast(Any, _between("<"))
"""The same, without those that it equals."""


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
"""Asks for the bytes at an address, which will be read soon."""
