"""Packages import from lower layers only.

The check reads the source text and imports nothing. The three tables below are the rules: `LAYERS`, `SAME_LAYER` and
`RESTRICTED`. To change the layering, change the tables and the examples at the end of the file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SRC: Final = Path(__file__).parent.parent / "src"

LAYERS: Final = (
    ("cli",),
    ("lab.bench",),  # measures clusters and buses beside other systems; started by commands only
    ("lab.soak",),  # runs clusters, buses and load, judged by the simulator's checkers; started by commands only
    (
        "lab.experiments",
    ),  # the papers' experiments, simulated and on real clusters; soaks use their networks and meters
    ("lab.demo",),
    ("lab.sim",),  # runs the shipped participants below
    ("lab",),  # shared by simulator, benchmarks, soaks, experiments and the demo; of what ships, only cli imports it
    ("cluster",),  # supervises local processes, among them leaders
    ("leader",),  # the process that decides
    ("pyspark_shoal",),  # Spark finds the data source under this name
    ("pipeline",),
    ("shoal",),  # the package itself: the names that `import shoal` offers
    ("redis",),
    ("bus",),
    ("history",),  # recorded messages: buses join them to live ones, jobs archive them, commands show them
    ("config",),  # the settings of every package below
    ("flow",),  # the simulator of load: runs policies, and no participant
    ("load_kinds",),  # the kinds of units and hosts of the packages below
    ("balance", "overlay", "engine", "queues", "channels", "places", "filters"),
    ("load",),  # telemetry records and load windows, of any kind of unit
    ("plan",),
    ("runtime",),  # the surroundings of a shell: connections, clocks, randomness, coordinator
    ("coordination",),
    ("wire",),
    ("message",),
    ("metrics",),
    ("logs",),
    ("limits",),
    ("folders",),
    ("rules",),  # protocol rules that the simulator can switch off
    ("errors",),
    ("version",),
)
"""Top to bottom. A package imports from lower layers; packages of one layer do not import each other."""

SAME_LAYER: Final[dict[tuple[str, str], str]] = {}
"""(importer, imported) pairs of one layer that are allowed, and why."""

RESTRICTED: Final = {
    "lab.sim": {
        "cli": "its command runs campaigns",
        "lab.soak": "real runs are judged by the same checkers as simulated ones",
    },
    "flow": {
        "cli": "its commands run experiments",
        "lab.experiments": "they run at the papers' scale in it",
        "pipeline": "its what-if job replays recorded load in it",
    },
}
"""Packages that only the listed importers may use, and why."""

LAYER: Final = {package: number for number, packages in enumerate(LAYERS) for package in packages}


def package_of(module: str) -> str:
    """The package that a dotted module name belongs to in the tables."""
    parts = module.split(".")
    if parts[:2] == ["shoal", "lab"] and ".".join(parts[1:3]) in LAYER:
        return ".".join(parts[1:3])
    return parts[1] if parts[0] == "shoal" and len(parts) > 1 else parts[0]


def violation(importer: str, imported: str) -> str | None:
    """The rule that is broken when one package imports another; None if none is."""
    if importer == imported:
        return None
    for package in (importer, imported):
        if package not in LAYER:
            return f"{package} has no layer: add it to LAYERS in tests/test_imports.py"
    allowed = RESTRICTED.get(imported)
    if allowed is not None and importer not in allowed:
        return f"only {', '.join(allowed)} may import {imported}, not {importer}"
    if LAYER[importer] < LAYER[imported] or (importer, imported) in SAME_LAYER:
        return None
    where = "of the same layer" if LAYER[importer] == LAYER[imported] else "of a higher layer"
    return f"{importer} imports {imported}, which is {where}"


def is_module(dotted: str) -> bool:
    path = SRC.joinpath(*dotted.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir()


def imported_modules(tree: ast.AST, parent: str) -> Iterator[tuple[int, str]]:
    """Line and name of every module under `shoal` that the tree imports, also in functions and for type checking.

    `parent` is the package that relative imports start from.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "shoal")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = parent.split(".")[: len(parent.split(".")) - node.level + 1]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            if base.split(".")[0] != "shoal":
                continue
            for alias in node.names:
                dotted = f"{base}.{alias.name}"
                yield node.lineno, dotted if is_module(dotted) else base


def violations_in(path: Path) -> Iterator[str]:
    """One line for each import of a source file that breaks a rule."""
    module = ".".join(path.relative_to(SRC).with_suffix("").parts)
    parent = module.rpartition(".")[0]
    importer = package_of(module.removesuffix(".__init__"))
    for line, imported in imported_modules(ast.parse(path.read_text()), parent):
        broken = violation(importer, package_of(imported))
        if broken is not None:
            yield f"{path.relative_to(SRC.parent)}:{line}: {broken}"


def test_packages_import_from_lower_layers_only() -> None:
    files = sorted(SRC.rglob("*.py"))
    assert files
    found = [line for path in files for line in violations_in(path)]
    assert not found, "\n".join(["imports that break the layering:", *found])


ALLOWED = """
    cli: cluster lab.sim lab.soak
    lab.bench: cluster
    lab.soak: lab.sim cluster
    channels: plan load
    balance: load
    pipeline: load load_kinds flow
    lab.experiments: flow lab
    plan: errors
    limits: errors
    lab.sim: channels bus cluster leader
    cluster: leader
    pyspark_shoal: pipeline
"""

FORBIDDEN = """
    cluster: lab.bench lab.soak lab.sim
    leader: cluster lab.sim
    plan: channels
    errors: limits
    channels: filters lab.sim flow balance
    balance: channels load_kinds
    load: channels balance load_kinds
    lab.sim: cli lab.soak
    lab: lab.sim
    flow: lab
    pipeline: lab
    cluster: lab
    bus: redis shoal lab.sim
    pyspark_shoal: cli
    attic: errors
"""


def pairs(table: str) -> list[tuple[str, str]]:
    lines = [line.split() for line in table.strip().splitlines()]
    return [(importer.rstrip(":"), imported) for importer, *others in lines for imported in others]


def test_the_tables_allow_and_forbid_these_imports() -> None:
    assert [pair for pair in pairs(ALLOWED) if violation(*pair) is not None] == []
    assert [pair for pair in pairs(FORBIDDEN) if violation(*pair) is None] == []


def test_relative_and_nested_imports_are_seen() -> None:
    tree = ast.parse("def f():\n    from ..plan import ring\n    from . import router\n    import shoal.wire.frames\n")
    seen = {package_of(name) for _, name in imported_modules(tree, "shoal.channels")}
    assert seen == {"plan", "channels", "wire"}


def test_every_exception_has_a_reason_and_names_packages_of_the_tables() -> None:
    for (importer, imported), reason in SAME_LAYER.items():
        assert LAYER[importer] == LAYER[imported]
        assert reason
    for imported, importers in RESTRICTED.items():
        assert {imported, *importers} <= set(LAYER)
        assert all(importers.values())
