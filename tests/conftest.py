"""What all tests share: their tiers, one Spark session, and property tests that draw the same examples in each run.

Every test belongs to one tier, which says what it needs:

    core    Python only
    real    a Redis or Valkey server: starts servers, agents and whole clusters of its own
    spark   Java and PySpark; without them the test is skipped, with the reason

A test can name its tier with a marker. Otherwise the tier follows from what it uses: the fixture `spark` means `spark`;
a module in `tests/real` or with a name like `test_real_game.py`, or one that imports something of `SERVER_MODULES`,
means `real`; everything else is `core`.

With `--tls`, or SHOAL_LOCAL_TLS=true, clusters use TLS unless a test asks for one without.

A Spark session takes seconds to start, and so does a cluster. Tests that share one run in one worker: `GROUPS` names
the fixtures, and `--dist loadgroup` keeps their tests together; `only_one_worker` fails if it does not. Tests with a
fixture of scope `module` run in one worker too: otherwise each worker would make its own. The groups come first, the
largest before the others. Then the tiers run in the order spark, real, core, so that the long tests are not the last
ones. `--cost` prints the CPU seconds of modules and tests; `--schedule FILE` writes when and where each test ran, too.

No property test is judged by the time it takes: machines are shared. To look for new examples, run with
`SHOAL_EXAMPLES=random`; an example that fails then is replayed from Hypothesis' own database.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, settings
from tests.support.cpu_cost import CpuCost
from tests.support.one_worker import only_one_worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIERS: Final = ("spark", "real", "core")
GROUPS: Final = ("shared_spark", "shared_cluster", "tls_cluster")
REAL: Final = Path(__file__).parent / "real"
SERVER_MODULES: Final = {
    "shoal.cluster.local",
    "tests.support.agent_site",
    "tests.support.cluster_thread",
    "tests.support.mover_scene",
    "tests.support.redis_server",
}
"""Test modules that import from one of these start servers."""

LAST: Final = pytest.StashKey[dict[str, pytest.Item]]()
"""The last test of each group."""

SHORT_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of every Java that tests start, by JAVA_TOOL_OPTIONS. A Java that lives for seconds spends half of its CPU
time on optimizing code that it runs a few times."""

PLAIN_SPARK: Final = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
"""More of them, which Spark takes as settings: queries of a few rows are interpreted, because to generate and compile
code for each takes longer. The jobs of `spark-submit` run with Spark's own settings (`SparkCluster`)."""

untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", untimed, derandomize=True, max_examples=50)
settings.register_profile("random", untimed, max_examples=200)
settings.load_profile("random" if os.environ.get("SHOAL_EXAMPLES") == "random" else "same")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a run in the background ignores it, and tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the suite's options."""
    parser.addoption("--tls", action="store_true", help="run real clusters with TLS")
    parser.addoption("--cost", action="store_true", help="print CPU seconds by module and test, children included")
    parser.addoption("--schedule", default="", metavar="FILE", help="--cost, and write when and where each test ran")


def pytest_configure(config: pytest.Config) -> None:
    """Makes TLS the default of clusters in this process, and of `shoal up` in others. Chooses Java's compiler."""
    os.environ.setdefault("JAVA_TOOL_OPTIONS", f"{SHORT_JAVA} {PLAIN_SPARK}")
    if config.getoption("--cost") or config.getoption("--schedule"):
        measures = not config.getoption("numprocesses", 0)
        config.pluginmanager.register(CpuCost(measures, config.getoption("--schedule")))
    if config.getoption("--tls") or os.environ.get("SHOAL_LOCAL_TLS", "").lower() in ("true", "1"):
        from shoal.cluster.local import LocalCluster

        LocalCluster.default_tls = True
        os.environ["SHOAL_LOCAL_TLS"] = "true"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives each test its tier, before `-m` chooses among them."""
    for item in items:
        named = {mark.name for mark in item.iter_markers() if mark.name in TIERS}
        if len(named) > 1:
            raise pytest.UsageError(f"{item.nodeid} names more than one tier: {', '.join(sorted(named))}")
        if not named:
            item.add_marker(tier_of(item))
        if item.get_closest_marker("xdist_group") is None and (group := group_of(item)):
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: next(TIERS.index(mark.name) for mark in item.iter_markers() if mark.name in TIERS))


@pytest.fixture(scope="session", autouse=True)
def machine_loops() -> None:
    """Agents in the process of a test run compiled loops, as others do; `./shoal test` has compiled them."""
    from shoal.channels.telemetry import loop_image

    loop_image.ensure()


def pytest_collection() -> None:
    """Thousands of collected tests stay until the end: the garbage collector need not look at them again and again."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """From now on there is garbage. Notes the last test of each group."""
    gc.collect()
    gc.freeze()
    gc.enable()
    session.config.stash[LAST] = {
        group: item for item in session.items for group in GROUPS if group in getattr(item, "fixturenames", ())
    }


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Ends a shared session or cluster after its last test: idle processes take time from the tests that follow."""
    for group, last in item.config.stash[LAST].items():
        if last is item:
            for fixture in item._request._arg2fixturedefs.get(group, ()):  # type: ignore[attr-defined]
                fixture.finish(item._request)  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports a failure also where Python 3.11 cannot parse its source: `ast.parse` raises SystemError if another
    thread, perhaps one that logs a traceback, parses at the same time. The run would end there, without a word about
    the failures until then."""
    try:
        return (yield)
    except SystemError:
        return pytest.TestReport.from_item_and_call(item, call)


def tier_of(item: pytest.Item) -> str:
    """The tier of a test that does not name one."""
    if "spark" in getattr(item, "fixturenames", ()):
        return "spark"
    return tier_of_module(getattr(item, "module", None), item.path)


@functools.cache
def tier_of_module(module: ModuleType | None, path: Path) -> str:
    """The tier of a module's tests that do not name one."""
    origins = {getattr(value, "__module__", None) for value in vars(module).values()} if module else set()
    named_real = REAL in path.parents or path.name.startswith("test_real_")
    return "real" if named_real or origins & SERVER_MODULES else "core"


def group_of(item: pytest.Item) -> str:
    """The group of a test that does not name one; empty if it may run in any worker."""
    for group in GROUPS:
        if group in getattr(item, "fixturenames", ()):
            return group
    used = getattr(item, "_fixtureinfo", None)
    shares = used is not None and any(found[-1].scope == "module" for found in used.name2fixturedefs.values() if found)
    return item.nodeid.partition("::")[0] if shares else ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests on Spark where there is no Java or no PySpark."""
    if item.get_closest_marker("spark") is not None and (missing := missing_for_spark()):
        pytest.skip(missing)


@functools.cache
def missing_for_spark() -> str:
    """Why Spark cannot run here; empty if it can."""
    from shoal.errors import MissingExtraError, NoJavaError
    from shoal.pipeline.session import import_spark
    from shoal.pipeline.spark.java import find_java

    try:
        find_java()
        import_spark()
    except (NoJavaError, MissingExtraError) as error:
        return str(error)
    return ""


@pytest.fixture
def spark(shared_spark: SparkSession) -> SparkSession:
    """A session on two threads of this machine, made the active one: some tests work in threads of their own."""
    from shoal.pipeline.session import activate

    activate(shared_spark)
    return shared_spark


@pytest.fixture(scope="session")
def spark_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the Java of `shared_spark` runs. The source looks for a local cluster in `state` there by default."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory, spark_directory: Path) -> Iterator[SparkSession]:
    """The session that tests share. No test may change its settings."""
    from shoal.pipeline.session import SessionOptions, running

    only_one_worker("shared_spark", tmp_path_factory)
    with contextlib.ExitStack() as stack:
        with contextlib.chdir(spark_directory), pytest.MonkeyPatch.context() as patch:
            patch.setenv("SHOAL_STATE_DIR", str(spark_directory / "state"))
            found = stack.enter_context(running(SessionOptions(name="tests")))
        yield found
