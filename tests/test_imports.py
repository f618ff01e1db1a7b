"""Imports go down the house only. Read from the source text; nothing is imported here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"

HOUSE = [
    ["cli"],
    ["bench"],  # measures clusters and buses beside others; only commands start it
    ["soak"],  # runs clusters, buses and load, and judges them by the simulator's checkers; only commands start it
    ["experiments"],  # the papers' experiments, simulated and on real clusters; soaks use their networks and meters
    ["dashboard"],
    ["demo"],
    ["cluster"],
    ["pipeline"],
    ["shoal"],  # the package itself: what `import shoal` offers
    ["redis"],
    ["bus"],
    ["history"],  # what was recorded: buses join it to what is live, jobs archive it, commands show it
    ["config"],  # knows the settings of every room below
    ["balance", "overlay", "engine", "queues", "channels", "places", "filters"],
    ["lab"],  # what the simulator, benchmarks, soaks, experiments and the demo share; nothing that ships imports it
    ["plan"],
    ["coordination"],
    ["wire"],
    ["message"],
    ["metrics"],
    ["logs"],
    ["limits"],
    ["folders"],
    ["errors"],
    ["version"],
]
"""Top to bottom. A room imports from floors below its own; rooms of one floor do not import each other."""

SIDEWAYS: dict[tuple[str, str], str] = {
    ("balance", "channels"): "load windows are folded from the analyzer's telemetry records",
}
"""(importer, imported) of one floor that is allowed all the same: the reason."""

MAY_IMPORT_SIM = {
    "cli": "its command runs campaigns",
    "soak": "real runs are judged by the same checkers as simulated ones",
    "experiments": "they run at the papers' scale in the flow simulator",
    "pipeline": "its what-if job replays recorded load in the flow simulator",
    "bench": "its loads come from the flow simulator's workloads",
}
"""Who may import the simulator, and why. No core may."""

FLOOR = {room: floor for floor, rooms in enumerate(HOUSE) for room in rooms}
CORE_FLOOR = FLOOR["channels"]
"""The simulator runs cores: rooms on this floor and below."""


def room_of(module: str) -> str:
    """The room of a dotted module name; `shoal` itself is a room, and so is `sim`."""
    parts = module.split(".")
    return parts[1] if parts[0] == "shoal" and len(parts) > 1 else parts[0]


def is_module(dotted: str) -> bool:
    path = SRC.joinpath(*dotted.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir()


def imported_modules(tree: ast.AST, package: str) -> Iterator[str]:
    """Every module of ours that the tree imports, also inside functions and for type checking."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "shoal")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            if base.split(".")[0] != "shoal":
                continue
            for alias in node.names:
                dotted = f"{base}.{alias.name}"
                yield dotted if is_module(dotted) else base


def verdict(importer: str, imported: str) -> str | None:
    """What is wrong with one room importing another; None if nothing is."""
    if importer == imported:
        return None
    if imported == "sim":
        reason = f"only {' and '.join(MAY_IMPORT_SIM)} may import sim, not {importer}"
        return None if importer in MAY_IMPORT_SIM else reason
    for room in (importer, imported):
        if room not in FLOOR and room not in ("sim", "pyspark_shoal"):
            return f"{room} has no place in the house: add it to HOUSE in tests/test_imports.py"
    if importer == "pyspark_shoal":
        allowed = FLOOR[imported] >= FLOOR["pipeline"]
        return None if allowed else f"pyspark_shoal may import the pipeline and what is below it, not {imported}"
    if importer == "sim":
        return None if FLOOR[imported] >= CORE_FLOOR else f"sim may import cores, not {imported}"
    if FLOOR[importer] < FLOOR[imported] or (importer, imported) in SIDEWAYS:
        return None
    way = "sideways" if FLOOR[importer] == FLOOR[imported] else "upwards"
    return f"{importer} imports {imported}, which is {way}"


def source_files() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(SRC)))
def test_a_module_imports_downwards_only(path: Path) -> None:
    module = ".".join(path.relative_to(SRC).with_suffix("").parts)
    package = module.removesuffix(".__init__") if path.name == "__init__.py" else module.rpartition(".")[0]
    importer = room_of(module.removesuffix(".__init__"))
    wrong = {
        complaint
        for imported in imported_modules(ast.parse(path.read_text()), package)
        if (complaint := verdict(importer, room_of(imported))) is not None
    }
    assert not wrong, f"{module}: {'; '.join(sorted(wrong))}"


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("cli", "cluster", True),
        ("cli", "sim", True),
        ("cli", "soak", True),
        ("bench", "cluster", True),
        ("cluster", "bench", False),
        ("soak", "sim", True),
        ("soak", "cluster", True),
        ("cluster", "soak", False),
        ("cluster", "sim", False),
        ("channels", "plan", True),
        ("plan", "errors", True),
        ("limits", "errors", True),
        ("sim", "channels", True),
        ("pyspark_shoal", "pipeline", True),
        ("plan", "channels", False),
        ("errors", "limits", False),
        ("channels", "filters", False),
        ("channels", "sim", False),
        ("sim", "cli", False),
        ("sim", "bus", False),
        ("bus", "redis", False),
        ("bus", "shoal", False),
        ("pyspark_shoal", "cli", False),
        ("attic", "errors", False),
    ],
)
def test_the_rules_of_the_house(importer: str, imported: str, allowed: bool) -> None:
    assert (verdict(importer, imported) is None) == allowed


def test_relative_and_nested_imports_are_seen() -> None:
    tree = ast.parse("def f():\n    from ..plan import ring\n    from . import router\n    import shoal.wire.resp\n")
    assert {room_of(name) for name in imported_modules(tree, "shoal.channels")} == {
        "plan",
        "channels",
        "wire",
    }


def test_every_allowed_sideways_pair_has_a_reason_and_one_floor() -> None:
    for (importer, imported), reason in SIDEWAYS.items():
        assert FLOOR[importer] == FLOOR[imported]
        assert reason
