"""The image of an agent's loops: machine code in a file, made by `loop_builder`, loaded without numba.

Owns the file's place and format, and which loops this process uses (`current`): those of the image, or the same loops
as Python until there is one. The file is named after a hash of the sources that it was made from, so a change of them
needs a new one. It is executed, so it must belong to this user and not be writable for others.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import platform
import struct
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.channels.telemetry.object_linker import Linked
from shoal.channels.telemetry.table_loops import SIGNATURES, Loops, MachineLoops, PlainLoops
from shoal.channels.telemetry.tables import Indexes
from shoal.folders import default_cache_dir, is_private
from shoal.logs import get_log
from shoal.wire.loop_source import Bytes

Matches: TypeAlias = npt.NDArray[np.bool_]

SOURCES: Final = (
    *(f"channels/telemetry/{name}.py" for name in ("lane_check", "pattern_kernel", "scan_kernel", "table_queries")),
    *(f"channels/telemetry/{name}.py" for name in ("tables", "table_loops", "loop_builder", "object_linker")),
    *(f"wire/{name}.py" for name in ("blake2s", "control", "envelope", "identity", "lane_tag", "loop_source")),
    *("wire/raw_bytes.py", "limits.py"),
)
"""What an image is made from, in the package."""

_MAGIC: Final = b"SHOALOOP"
_OBJECTS_MAGIC: Final = b"SHOALOBJ"
_HEAD: Final = struct.Struct("<8sI32s")
_ENTRY: Final = struct.Struct("<32sQ")
_ALIGNMENT: Final = 64
_log: Final = get_log(__name__)


@cache
def source_hash() -> str:
    """Changes with any source that an image is made from, and with the architecture."""
    made = hashlib.blake2s(platform.machine().encode(), digest_size=12)
    package = Path(__file__).parent.parent.parent
    for name in SOURCES:
        made.update(b"\0" + package.joinpath(name).read_bytes())
    return made.hexdigest()


def place() -> Path | None:
    """The file of the image, whether or not there is one; None if this user has no private directory for it."""
    without_home: dict[str, str] = {}
    for environ in (os.environ, without_home):
        folder = default_cache_dir(environ) / "loops"
        try:
            folder.mkdir(0o700, parents=True, exist_ok=True)
            if is_private(folder) and is_private(folder.parent):
                return folder / f"{source_hash()}.image"
        except OSError:
            continue
    _log.warning(
        "compiled loops cannot be stored, so every agent compiles for a minute",
        do="set XDG_CACHE_HOME to a directory that only this user can write to",
    )
    return None


def encode(parts: Mapping[str, Linked]) -> bytes:
    """An image: a head with a checksum, the address of each loop, the code."""
    at = _HEAD.size + _ENTRY.size * len(parts)
    entries, code = b"", b""
    for name, part in parts.items():
        code += bytes(-(at + len(code)) % _ALIGNMENT)
        entries += _ENTRY.pack(name.encode(), at + len(code) + part.entry)
        code += part.code
    return _HEAD.pack(_MAGIC, len(parts), hashlib.blake2s(entries + code).digest()) + entries + code


def encode_objects(objects: Mapping[str, tuple[bytes, str]]) -> bytes:
    """An image of object files, where we do not link ourselves: each loop with its object and the name in it."""
    content = msgspec.msgpack.encode(dict(objects))
    return _HEAD.pack(_OBJECTS_MAGIC, len(objects), hashlib.blake2s(content).digest()) + content


def write(path: Path, image: bytes) -> None:
    """Writes an image in one step, so that readers find a whole one or none."""
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_bytes(image)
    draft.chmod(0o600)
    draft.replace(path)


def load(path: Path) -> MachineLoops | None:
    """The loops of an image; None if there is none, or if it is damaged or not of this user."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                return None
            image = file.read()
            magic, count, digest = _HEAD.unpack_from(image)
            if magic not in (_MAGIC, _OBJECTS_MAGIC) or hashlib.blake2s(image[_HEAD.size :]).digest() != digest:
                return None
            if magic == _OBJECTS_MAGIC:
                return _load_objects(image[_HEAD.size :])
            try:
                memory = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
            except PermissionError:  # no programs are run from this file system
                memory = mmap.mmap(-1, len(image), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
                memory.write(image)
    except (OSError, struct.error):
        return None
    view = np.frombuffer(memory, np.uint8)
    entries = (_ENTRY.unpack_from(image, _HEAD.size + _ENTRY.size * index) for index in range(count))
    addresses = {name.rstrip(b"\0").decode(): view.ctypes.data + at for name, at in entries}
    return MachineLoops(addresses, view) if addresses.keys() >= SIGNATURES.keys() else None


def _load_objects(content: bytes) -> MachineLoops:
    """Has LLVM load object files, which costs 40 MB."""
    import llvmlite.binding as llvm  # type: ignore[import-untyped]

    objects = msgspec.msgpack.decode(content, type=dict[str, tuple[bytes, str]])
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    for data, _ in objects.values():
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    return MachineLoops({name: engine.get_function_address(symbol) for name, (_, symbol) in objects.items()}, engine)


_plain: Final = PlainLoops()
_current: Loops = _plain


def current() -> Loops:
    """The loops that this process uses."""
    return _current


def is_compiled() -> bool:
    """Whether this process has machine code."""
    return _current is not _plain


def use(loops: Loops) -> None:
    """Makes scanners use these loops from their next bytes on."""
    global _current
    _current = loops


def match_names(names: Bytes, offsets: Indexes, pattern: bytes, steps_max: int) -> tuple[Matches, int, bool]:
    """Whether a pattern matches each name, the number of steps, and whether all names were looked at; see
    `pattern_kernel`."""
    matches = np.zeros(len(offsets) - 1, np.bool_)
    steps = _current.call("match_names", names, offsets, np.frombuffer(pattern, np.uint8), steps_max, matches)
    return matches, max(steps, ~steps), steps >= 0


def build_command() -> list[str]:
    """The command that makes the image, in a process of its own."""
    return [sys.executable, "-m", "shoal.channels.telemetry.loop_builder"]


def ensure() -> None:
    """Uses the image, and makes it first if there is none, which takes most of a minute: for work that is no use
    without machine code. The loops stay Python where it cannot be made."""
    if not load_image():
        _log.info("compiling the loops of agents, once for this version: this takes up to a minute")
        subprocess.run(build_command(), stdout=subprocess.DEVNULL, check=False)
        load_image()


def load_image() -> bool:
    """Uses the image, if there is one; returns whether this process has machine code."""
    where = place() if not is_compiled() else None
    found = load(where) if where is not None else None
    if found is not None:
        use(found)
    return is_compiled()
