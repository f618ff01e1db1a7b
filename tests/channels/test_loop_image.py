"""The image of an agent's loops: made from all of its sources, loaded only when it is whole and private."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.channels.observed import envelope, observed
from tests.support.import_graph import ImportGraph

from shoal.channels.telemetry import loop_image
from shoal.channels.telemetry.object_linker import LinkError, link
from shoal.channels.telemetry.scanner import Scanner
from shoal.channels.telemetry.table_loops import SIGNATURES, TABLE_DTYPES, PlainLoops
from shoal.channels.telemetry.tables import TableLimits, Tables, make_tables

SOURCE = Path(loop_image.__file__).parent.parent.parent
UNUSED = {"shoal.errors", "shoal.rules", "shoal.message"}
"""Imported by the sources for other purposes than values in loops."""


@pytest.fixture
def image() -> Path:
    place = loop_image.place()
    assert place is not None
    assert place.exists()
    return place


def test_the_hash_covers_every_module_with_a_loop_and_what_it_takes_values_from() -> None:
    graph = ImportGraph()
    listed = {f"shoal.{name.removesuffix('.py').replace('/', '.')}" for name in loop_image.SOURCES}
    with_loops = {function.__module__ for function, _ in SIGNATURES.values()} | {"shoal.wire.blake2s"}
    with_loops |= {"shoal.channels.telemetry.lane_check", "shoal.wire.loop_source"}
    needed = set(with_loops)
    for module in with_loops:
        for node in ast.walk(graph.tree(module)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shoal.") and node.level == 0:
                needed |= {node.module} if graph.path(str(node.module)).name != "__init__.py" else set()  # type: ignore[arg-type]
    assert needed - UNUSED <= listed
    assert {SOURCE / name for name in loop_image.SOURCES} == {graph.path(module) for module in listed}


def test_the_types_of_the_tables_are_those_of_its_arrays() -> None:
    tables = make_tables(TableLimits())
    assert {name: getattr(tables, name).dtype for name in Tables._fields} == TABLE_DTYPES


def test_an_image_is_loaded_if_it_is_whole_and_only_the_user_can_write_to_it(image: Path, tmp_path: Path) -> None:
    copy = tmp_path / image.name
    content = image.read_bytes()
    assert loop_image.load(copy) is None
    loop_image.write(copy, content)
    assert loop_image.load(copy) is not None
    for damaged in (content[:-1], content[:-1] + b"\xff", b"", b"x" * 200):
        loop_image.write(copy, damaged)
        assert loop_image.load(copy) is None
    loop_image.write(copy, content)
    copy.chmod(0o666)
    assert loop_image.load(copy) is None


def test_a_scanner_changes_to_machine_code_between_two_pieces_of_a_message(image: Path) -> None:
    machine = loop_image.current()
    data = b"".join(observed(b"c%d" % (n % 7), envelope(n % 5 + 1, n)) for n in range(200))
    try:
        loop_image.use(PlainLoops())
        changing, plain = Scanner(1 << 20), Scanner(1 << 20)
        for at in range(0, len(data), 333):
            loop_image.use(PlainLoops() if at < len(data) // 2 else machine)
            changing.feed(data[at : at + 333], at / 1000)
            assert changing.scan() is None
        loop_image.use(PlainLoops())
        for at in range(0, len(data), 333):
            plain.feed(data[at : at + 333], at / 1000)
            assert plain.scan() is None
        for ours, other in zip(changing._tables, plain._tables, strict=True):
            assert np.array_equal(ours, other)
    finally:
        loop_image.use(machine)


def test_a_process_without_an_image_runs_the_loops_as_python(tmp_path: Path) -> None:
    code = (
        "import sys; from shoal.channels.telemetry import loop_image, scanner\n"
        "assert not loop_image.load_image(); s = scanner.Scanner(4096)\n"
        "s.feed(b'+OK\\r\\n', 0.0); assert s.scan().value == b'OK'\n"
        "assert 'numba' not in sys.modules"
    )
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environ)


def test_code_that_calls_something_else_is_not_linked() -> None:
    llvm = pytest.importorskip("llvmlite.binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(reloc="pic", codemodel="small")
    text = "declare i32 @puts(ptr)\ndefine i32 @f(ptr %p) {\n  %r = call i32 @puts(ptr %p)\n  ret i32 %r\n}"
    with pytest.raises(LinkError, match="puts"):
        link(machine.emit_object(llvm.parse_assembly(text)), "f")
    with pytest.raises(LinkError, match="not an object file"):
        link(bytes(200), "f")
