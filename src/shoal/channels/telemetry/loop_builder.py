"""Compiles the loops of an agent to an image: machine code that agents load without numba.

Owns the compilation. It takes most of a minute and 300 MB, so it runs in a process of its own, once for a version of
the sources; `loop_image` has the place and the format of the result.

    python -m shoal.channels.telemetry.loop_builder      compiles, unless there is an image; prints its path
"""

from __future__ import annotations

import fcntl
import os
import platform
import sys
from typing import Any, Final

if __name__ == "__main__":  # before numba is imported: an image runs on any machine of its architecture
    os.environ["NUMBA_CPU_NAME"] = "generic"
    os.environ["NUMBA_CPU_FEATURES"] = ""

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic
from numba.np import arrayobj

from shoal.channels.telemetry.loop_image import encode, encode_objects, load, place, write
from shoal.channels.telemetry.object_linker import link
from shoal.channels.telemetry.table_loops import DTYPES, SIGNATURES, TABLE_DTYPES, TABLES, words_of
from shoal.channels.telemetry.tables import Tables
from shoal.wire import raw_bytes

_KNOWN: Final = raw_bytes
"""Imported for its effect: numba can compile the marked functions."""

_OPTIONS: Final[Any] = {
    "boundscheck": False,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "_nrt": False,  # loops create no arrays, and the caller holds theirs
}


@intrinsic
def _array_at(_context: Any, _address: Any, _length: Any, dtype: Any) -> Any:
    """The array at an address. It is not counted: the caller of the loop holds it."""
    array = types.Array(dtype.dtype, 1, "C")

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        view = context.make_array(array)(context, builder)
        size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(array.dtype)))
        data = builder.inttoptr(arguments[0], view.data.type)
        arrayobj.populate_array(view, data, [arguments[1]], [size], size, None)  # type: ignore[no-untyped-call]
        return view._getvalue()

    return array(types.int64, types.int64, dtype), codegen


def compile_entry(name: str) -> Any:
    """What numba makes of one loop, as a function of numbers only; see `table_loops`."""
    function, kinds = SIGNATURES[name]
    scope: dict[str, Any] = {"array_at": _array_at, "np": np, "loop": function, "Tables": Tables}
    words = [f"w{number}" for number in range(sum(map(words_of, kinds)))]
    lines, left = [f"def entry({', '.join(words)}):"], iter(words)
    for number, kind in enumerate(kinds):
        value = word = next(left)
        if kind == TABLES:
            scope["int64"] = DTYPES["int64"]
            lines.append(f"    block = array_at({word}, {2 * len(Tables._fields)}, int64)")
            arrays = []
            for field, dtype in enumerate(TABLE_DTYPES[name] for name in Tables._fields):
                scope[f"table{field}"] = dtype
                arrays.append(f"array_at(block[{2 * field}], block[{2 * field + 1}], table{field})")
            value = f"Tables({', '.join(arrays)})"
        elif kind == "word":
            value = f"np.uint64({word})"
        elif kind != "int":
            scope[f"dtype{number}"] = DTYPES[kind]
            value = f"array_at({word}, {next(left)}, dtype{number})"
        lines.append(f"    a{number} = {value}")
    lines.append(f"    return np.int64(loop({', '.join(f'a{number}' for number in range(len(kinds)))}))")
    exec("\n".join(lines), scope)
    signature = types.int64(*[types.int64] * len(words))
    compiled = numba.njit(signature, **_OPTIONS)(scope["entry"])
    return compiled.overloads[signature.args]


def object_code(name: str) -> tuple[bytes, str]:
    """One loop as an object file, and the name of its function there."""
    result = compile_entry(name)
    module = llvm.parse_assembly(result.library.get_llvm_str())
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(opt=3, reloc="pic", codemodel="small")
    return machine.emit_object(module), result.fndesc.llvm_func_name


def build() -> bytes:
    """The image of all loops."""
    objects = {name: object_code(name) for name in SIGNATURES}
    if platform.machine() != "x86_64":
        return encode_objects(objects)
    return encode({name: link(*found) for name, found in objects.items()})


def main() -> int:
    """Makes the image, if there is none. One process at a time does it; the others wait for it."""
    path = place()
    if path is None:
        return 1
    os.nice(10)  # servers and agents come first
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if load(path) is None:
            write(path, build())
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
