"""Packages import from lower layers only, generic modules know no channels, and shells take everything from outside the
process from their `Runtime`.

The checks read the source text and import nothing. The tables are the rules: `LAYERS`, `SAME_LAYER`, `RESTRICTED`,
`PARTS` and `DOORS` for the layering, `GENERIC` for modules that serve every kind of unit, `SURROUNDINGS`, `CONNECTIONS`
and `EXCEPTIONS` for names that a module may not use. To change a rule, change its table and the examples below it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.support.import_graph import ImportGraph, absolute_base

pytestmark = pytest.mark.xdist_group("imports")
SOURCE: Final = ImportGraph()
"""All tests of the module use its parsed sources, so they run in one worker."""

# Layers

LAYERS: Final = (
    ("pyspark_shoal",),  # where Spark finds the data source, and spark-submit the program that runs jobs
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
    ("pipeline",),
    ("shoal",),  # the package itself: the names that `import shoal` offers
    ("testing",),  # for tests of applications: queues without a server
    ("workers",),  # decorated handlers of queues, on a bus
    ("redis",),
    ("bus",),
    ("history",),  # recorded messages: buses join them to live ones, jobs archive them, commands show them
    ("config",),  # the settings of every package below
    ("flow",),  # the simulator of load: runs policies, and no participant
    ("load_kinds",),  # the kinds of units and hosts of the packages below
    ("balance", "overlay", "engine", "queues", "channels", "places", "filters"),
    ("agents",),  # what the agents of servers and of stores share
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
    ("extras",),  # which extra has a missing package
    ("errors",),
    ("version",),
)
"""Top to bottom. A package imports from lower layers; packages of one layer do not import each other."""

SAME_LAYER: Final[dict[tuple[str, str], str]] = {("engine", "filters"): "its matcher holds an index of filters"}
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

PARTS: Final[dict[str, set[str]]] = {
    "shoal.channels.client": set(),
    "shoal.channels.telemetry": set(),
    "shoal.channels.recording": set(),
    "shoal.channels.agent": {"shoal.channels.telemetry", "shoal.channels.recording"},
}
"""The parts of a package, and the other parts that each may import: a client and an agent share no code by accident.
Modules beside the parts (`shoal.channels.states` ...) are free for all."""

DOORS: Final = {
    "shoal.channels.client": {"router", "subscription", "context", "inbox", "enrolment"},
}
"""The modules of a part that the rest may import. Shells use `Router`, `SubscriptionCore`, effects and counters,
statistics, and `Enrolment`, which comes before a router."""

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


def part_of(module: str) -> str | None:
    """The part in `PARTS` that a module belongs to."""
    part = ".".join(module.split(".")[:3])
    return part if part in PARTS else None


def part_violation(importer: str, imported: str) -> str | None:
    """The rule about parts that is broken when one module imports another; None if none is."""
    inside, part = part_of(importer), part_of(imported)
    if part is None or part == inside:
        return None
    if inside is not None and part not in PARTS[inside]:
        return f"{inside} imports {part}"
    name = imported.removeprefix(f"{part}.")
    if part in DOORS and name not in DOORS[part]:
        return f"{importer} imports {imported}, which is internal to {part}"
    return None


def violations_in(module: str) -> Iterator[str]:
    """One line for each import of a module that breaks a rule."""
    importer = package_of(module)
    for line, imported in SOURCE.imports(module):
        broken = violation(importer, package_of(imported)) or part_violation(module, imported)
        if broken is not None:
            yield f"{SOURCE.path(module)}:{line}: {broken}"


def test_packages_import_from_lower_layers_only() -> None:
    modules = SOURCE.modules()
    assert modules
    found = [line for module in modules for line in violations_in(module)]
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
    pyspark_shoal: pipeline cli
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
    pipeline: pyspark_shoal
    attic: errors
"""


def pairs(table: str) -> list[tuple[str, str]]:
    lines = [line.split() for line in table.strip().splitlines()]
    return [(importer.rstrip(":"), imported) for importer, *others in lines for imported in others]


def test_the_tables_allow_and_forbid_these_imports() -> None:
    assert [pair for pair in pairs(ALLOWED) if violation(*pair) is not None] == []
    assert [pair for pair in pairs(FORBIDDEN) if violation(*pair) is None] == []


def test_the_tables_allow_and_forbid_these_imports_of_parts() -> None:
    client, agent = "shoal.channels.client", "shoal.channels.agent"
    assert part_violation(f"{agent}.core", "shoal.channels.telemetry.scanner") is None
    assert part_violation("shoal.bus.shell", f"{client}.router") is None
    assert part_violation(f"{client}.router", f"{client}.receiver") is None
    assert part_violation(f"{agent}.core", f"{client}.router") is not None
    assert part_violation("shoal.bus.shell", f"{client}.receiver") is not None


def test_every_part_of_channels_is_in_the_table_and_every_door_is_used() -> None:
    modules = SOURCE.modules()
    packages = {module for module in modules if SOURCE.path(module).name == "__init__.py"}
    assert {package for package in packages if package.startswith("shoal.channels.")} == PARTS.keys()
    for part, names in DOORS.items():
        outside = [module for module in modules if part_of(module) != part]
        used = {imported for module in outside for _, imported in SOURCE.imports(module) if part_of(imported) == part}
        assert {imported.removeprefix(f"{part}.") for imported in used} == names


def test_relative_and_nested_imports_are_seen(tmp_path: Path) -> None:
    text = "def f():\n    from ..plan import ring\n    from . import states\n    import shoal.wire.x"
    texts = {"shoal.channels.router": text, "shoal.channels.states": "", "shoal.plan.ring": ""}
    source = write_source(tmp_path, texts)
    seen = {name for _, name in source.imports("shoal.channels.router")}
    assert seen == {"shoal.plan.ring", "shoal.channels.states", "shoal.wire.x"}


def test_every_exception_of_the_layering_has_a_reason_and_names_packages_of_the_tables() -> None:
    for (importer, imported), reason in SAME_LAYER.items():
        assert LAYER[importer] == LAYER[imported]
        assert reason
    for imported, importers in RESTRICTED.items():
        assert {imported, *importers} <= set(LAYER)
        assert all(importers.values())


def write_source(root: Path, texts: dict[str, str]) -> ImportGraph:
    for module, text in texts.items():
        path = root.joinpath(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return ImportGraph(root)


# Modules for every kind of unit

GENERIC: Final = (
    "shoal.load.fold",
    "shoal.plan.conductor",
    "shoal.leader.conductor_shell",
    "shoal.cluster.fleet",
    "shoal.lab.sim.scenario",
    "shoal.lab.sim.campaign",
    "shoal.lab.sim.history",
    "shoal.lab.sim.checkers",
)
"""They import nothing from `shoal.channels`, not even indirectly, in a function or for type checking."""

CHANNELS: Final = "shoal.channels"


def chains_to_channels(source: ImportGraph, module: str) -> list[str]:
    """The chains of imports from a module to the packages of channels."""
    reached = source.reach(module)
    return [chain for imported, chain in reached.items() if f"{imported}.".startswith(f"{CHANNELS}.")]


def test_generic_modules_import_nothing_from_channels() -> None:
    assert [chain for module in GENERIC for chain in chains_to_channels(SOURCE, module)] == []


def test_an_indirect_import_of_channels_is_reported(tmp_path: Path) -> None:
    texts = {
        "shoal.load.fold": "def f():\n    from shoal.load import helper",
        "shoal.load.helper": "if TYPE_CHECKING:\n    from ..channels.states import Link",
        "shoal.channels.states": "",
    }
    assert chains_to_channels(write_source(tmp_path, texts), "shoal.load.fold") == [
        "shoal.load.fold -> shoal.load.helper -> shoal.channels.states"
    ]


# What comes from the runtime

SHELLS_AND_CORES: Final = (
    "bus",
    "channels",
    "queues",
    "engine",
    "filters",
    "agents",
    "workers",
    "leader",
    "coordination",
    "wire",
    "plan",
    "balance",
    "load",
)

SURROUNDINGS: Final = {
    "time": "take the time from the caller, the event loop or Runtime.wall",
    "datetime.datetime.now": "take the time from the caller or Runtime.wall",
    "datetime.datetime.utcnow": "take the time from the caller or Runtime.wall",
    "datetime.datetime.today": "take the time from the caller or Runtime.wall",
    "datetime.date.today": "take the time from the caller or Runtime.wall",
    "random": "take random numbers from Runtime.random; only the class Random, with a seed, is allowed",
    "secrets": "take random numbers from Runtime.random",
    "uuid": "take random numbers from Runtime.random",
    "os.urandom": "take random numbers from Runtime.random",
    "os.getrandom": "take random numbers from Runtime.random",
    "socket": "use shoal.wire.connection with Runtime.dial",
    "threading.Thread": "use asyncio.to_thread, or shoal.filters.index.background",
    "concurrent.futures": "use asyncio.to_thread",
    "shoal.runtime.PRODUCTION": "take a Runtime as an argument",
}
"""What shells and cores may not use, and what they use instead. The simulator replaces it."""

CONNECTIONS: Final = {
    "redis": "use shoal.wire.connection",
    ".open_connection": "use shoal.wire.connection with Runtime.dial",
    ".create_connection": "use shoal.wire.connection with Runtime.dial",
    "shoal.wire.dial.tcp": "use Runtime.dial or Runtime.address_book",
    "shoal.coordination.redis.RedisCoordinator": "use Runtime.coordinator",
}
"""What no module may use, so that connections are opened in one place. A leading dot stands for any module or object.
"""

EXCEPTIONS: Final = {
    ("shoal.runtime", "shoal.wire.dial.tcp"): "the one place that chooses how production opens connections",
    (
        "shoal.runtime",
        "shoal.coordination.redis.RedisCoordinator",
    ): "the one place that chooses production's coordinator",
    ("shoal.wire.dial", ".create_connection"): "opens the connections",
    ("shoal.wire.dial", "socket"): "sets the options of the connections that it opens",
    ("shoal.bus.client", "shoal.runtime.PRODUCTION"): "connect() is the entry for applications",
    ("shoal.channels.agent.process", "shoal.runtime.PRODUCTION"): "run_agent() is the agent's process",
    ("shoal.queues.agent.process", "shoal.runtime.PRODUCTION"): "run_store_agent() is the process of a store's agent",
    ("shoal.leader.process", "shoal.runtime.PRODUCTION"): "run_balancer() is the balancer's process",
    ("shoal.filters.index.background", "threading.Thread"): "the background of an index in production",
    ("shoal.filters.index.snapshot", "secrets"): "names a file that is not finished",
    ("shoal.filters.fuzz", "random"): "the class Random, with a seed, and its type",
    ("shoal.engine.measures", "time"): "the CPU of a meter that counts for no shell, as in benchmarks of cores",
    ("shoal.channels.agent.process", "threading.Thread"): "run_agent() loads modules before the agent works",
    ("shoal.wire.blocking_connection", "concurrent.futures"): "for code without an event loop",
    ("shoal.workers.threads", "concurrent.futures"): "runs plain functions of applications",
    ("shoal.redis", "redis"): "offers the exceptions of redis-py, and explains its other names",
    ("shoal.redis.client", "redis"): "explains the commands of redis-py",
    ("shoal.redis.conversion", "redis"): "raises the exceptions of redis-py",
    ("shoal.redis.deadlines", "redis"): "raises the exceptions of redis-py",
    ("shoal.redis.feeds", "redis"): "raises the exceptions of redis-py",
    ("shoal.redis.options", "redis"): "reads the options of redis-py's client",
    ("shoal.redis.pubsub", "redis"): "raises the exceptions of redis-py",
    ("shoal.lab.bench.client_redis_py", "redis"): "a contender",
    ("shoal.lab.bench.pipeline_source", "redis"): "a contender",
    ("shoal.lab.bench.client_raw", ".create_connection"): "a contender: the least that a client must do",
    ("shoal.lab.bench.flood", ".create_connection"): "a load that must cost less than what it measures",
    ("shoal.lab.soak.plain_clients", "redis"): "clients without Shoal, in soak runs",
    ("shoal.lab.soak.redis_round", "redis"): "the client beside which ours is judged",
    ("shoal.lab.soak.hostile_worker", ".create_connection"): "clients that must not behave as ours do, in soak runs",
}
"""(module, name) pairs that are allowed, and why."""


def uses(tree: ast.AST, package: str, rules: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Line and rule of each import, attribute and call in a tree that a rule names."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom, ast.Attribute, ast.Call))]
    origins = _origins(nodes, package)
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = absolute_base(node, package)
            names = [f"{start}.{alias.name}" for alias in node.names for start in (base, "")]
        elif isinstance(node, ast.Attribute):
            names = [_dotted(node, origins), f".{node.attr}"]
        elif not (node.args or node.keywords):
            names = [f"{_dotted(node.func, origins)}()"]  # Random() takes its seed from the operating system
        for name in filter(None, names):
            if name != "random.Random":
                yield from ((node.lineno, start) for start in _starts(name) if start in rules)


def _starts(name: str) -> Iterator[str]:
    """A dotted name, and the packages around it: `os.path`, `os`."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _origins(nodes: Iterable[ast.AST], package: str) -> dict[str, str]:
    """What the imported names of a module stand for."""
    origins: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.split(".")[0]
                origins |= {alias.asname: alias.name} if alias.asname else {root: root}
        elif isinstance(node, ast.ImportFrom):
            base = absolute_base(node, package)
            origins |= {alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names}
    return origins


def _dotted(node: ast.expr, origins: dict[str, str]) -> str:
    """The full name of an expression such as `dt.datetime.now`; empty if it does not start with an imported name."""
    if isinstance(node, ast.Name):
        return origins.get(node.id, "")
    base = _dotted(node.value, origins) if isinstance(node, ast.Attribute) else ""
    return f"{base}.{node.attr}" if isinstance(node, ast.Attribute) and base else ""


def uses_in(module: str) -> Iterator[tuple[int, str, str]]:
    """Line, rule and advice for everything that a module uses against the rules, exceptions included."""
    rules = CONNECTIONS | SURROUNDINGS if package_of(module) in SHELLS_AND_CORES else CONNECTIONS
    for line, rule in uses(SOURCE.tree(module), SOURCE.package_of(module), rules):
        yield line, rule, rules[rule]


def test_shells_and_cores_take_their_surroundings_from_the_runtime() -> None:
    found, excused = [], set()
    for module in SOURCE.modules():
        for line, rule, advice in uses_in(module):
            if (module, rule) in EXCEPTIONS:
                excused.add((module, rule))
            else:
                found.append(f"{SOURCE.path(module)}:{line}: uses {rule}: {advice}")
    assert not found, "\n".join(found)
    assert EXCEPTIONS.keys() == excused, "exceptions that nothing needs any more"


USED: Final = """
    time: import time
    time: from time import monotonic
    datetime.datetime.now: import datetime as dt; dt.datetime.now()
    datetime.datetime.now: from datetime import UTC, datetime; datetime.now(UTC)
    datetime.date.today: from datetime import date; date.today()
    random: import random
    random: from random import SystemRandom
    random: from random import Random; Random()
    secrets: def f(): from secrets import token_hex
    os.urandom: import os; os.urandom(8)
    os.urandom: from os import urandom
    socket: import socket
    threading.Thread: import threading; threading.Thread(target=f)
    threading.Thread: from threading import Thread
    concurrent.futures: from concurrent.futures import ThreadPoolExecutor
    redis: from redis.asyncio import Redis
    .open_connection: import asyncio; asyncio.open_connection("h", 1)
    .open_connection: from asyncio import open_connection
    .create_connection: loop().create_connection(None, "h", 1)
    shoal.runtime.PRODUCTION: from shoal.runtime import PRODUCTION
    shoal.runtime.PRODUCTION: from .. import runtime; runtime.PRODUCTION
    shoal.wire.dial.tcp: from .dial import tcp
"""

UNUSED: Final = """
    import datetime as dt; dt.datetime.fromtimestamp(0)
    from random import Random; Random(7)
    from random import Random; Random(seed).random()
    import os; os.getpid()
    import threading; threading.RLock()
    import asyncio; asyncio.sleep(1)
    self.time(); loop.time(); window.now
    from shoal.redis import Redis
    from shoal.runtime import Runtime
    from shoal.wire.dial import Dial
"""


def test_these_uses_are_seen_and_no_others() -> None:
    rules = CONNECTIONS | SURROUNDINGS
    for rule, text in (line.strip().split(": ", 1) for line in USED.strip().splitlines()):
        assert rule in {found for _, found in uses(ast.parse(text), "shoal.wire", rules)}, text
    for text in map(str.strip, UNUSED.strip().splitlines()):
        assert list(uses(ast.parse(text), "shoal.wire", rules)) == [], text
