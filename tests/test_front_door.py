"""The front door `./shoal`: plain sh, found through links, and honest about what it cannot do.

These tests run copies of the script with a made-up environment beside it; nothing is downloaded or installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCKS = ("server", "bench", "test", "spark")
"""What is installed by need, each with a stamp of its own."""


class Door:
    """A copy of the front door with a `.venv` whose python only says how it was called."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.stamp = home / ".venv" / "server-stamp"
        self.spark_stamp = home / ".venv" / "spark-stamp"
        (home / "requirements").mkdir(parents=True)
        (home / ".venv" / "bin").mkdir(parents=True)
        shutil.copy(ROOT / "shoal", home / "shoal")
        for name in (*LOCKS, "spark-build"):
            (home / "requirements" / f"{name}.lock").write_text(name)
        self.script(home / ".venv" / "bin" / "python", 'echo "python in $(pwd): $*"')
        self.script(home / ".venv" / "bin" / "redis-server", "exit 0")
        self.write_stamp()

    @staticmethod
    def script(path: Path, body: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def write_stamp(self) -> None:
        for name in LOCKS:
            done = subprocess.run(["cksum"], input=name.encode(), capture_output=True, check=True)
            stamp = f"{done.stdout.decode().strip()} {self.home.resolve()}"
            (self.home / ".venv" / f"{name}-stamp").write_text(stamp + "\n")

    def run(
        self, *words: str, door: Path | None = None, cwd: Path | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(door or self.home / "shoal"), *words],
            cwd=cwd,
            env={"PATH": "/usr/bin:/bin", "SHOAL_NO_INSTALL": "1", **environ},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path / "a home")


def test_it_is_plain_sh_and_executable() -> None:
    assert os.access(ROOT / "shoal", os.X_OK)
    subprocess.run(["sh", "-n", ROOT / "shoal"], check=True)
    text = (ROOT / "shoal").read_text()
    assert text.startswith("#!/bin/sh\n")
    bashisms = re.findall(r"\[\[|\bfunction \w|\blocal \b|<<<|\bsource\b|&>|\$'", text)
    assert bashisms == []


def test_continuous_integration_runs_tests_and_checks() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=True)


def test_once_prepared_it_goes_straight_to_the_command_line(door: Door, tmp_path: Path) -> None:
    done = door.run("pub", "a b", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"python in {tmp_path}: -m shoal.cli pub a b --json\n"


@pytest.mark.parametrize("target", ["absolute", "relative"])
def test_it_is_found_through_links(target: str, door: Door, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    link, second = tmp_path / "bin" / "link", tmp_path / "second"
    link.symlink_to(door.home / "shoal" if target == "absolute" else "../a home/shoal")
    second.symlink_to("bin/link")
    assert "-m shoal.cli status" in door.run("status", door=second, cwd=Path("/")).stdout


def test_the_tests_run_at_the_root_in_parallel(door: Door, tmp_path: Path) -> None:
    done = door.run("test", "-k", "one", cwd=tmp_path)
    workers = min((os.cpu_count() or 2) + 4, 6)
    assert done.stdout == f"python in {door.home}: -m pytest -n {workers} --dist loadgroup -k one\n"


def test_check_runs_everything_and_fails_if_one_fails(door: Door) -> None:
    assert door.run("check").returncode == 0
    Door.script(door.home / ".venv" / "bin" / "python", 'echo "$2 $3"; [ "$2" != mypy ]')
    done = door.run("check")
    assert done.returncode == 1
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["ruff", "ruff", "mypy", "pytest"]


@pytest.mark.parametrize("change", ["requirements/server.lock", "stamp", "moved"])
def test_a_change_prepares_again(change: str, door: Door, tmp_path: Path) -> None:
    if change == "stamp":
        door.stamp.unlink()
    elif change == "moved":
        door.home = door.home.rename(tmp_path / "moved")
    else:
        (door.home / change).write_text("changed")
    # The python of this environment takes any call, so preparing succeeds without doing anything.
    done = door.run("status", PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    assert done.returncode == 0
    assert re.fullmatch(r"shoal: preparing .*\n", done.stderr)
    assert door.run("status").stderr == ""


def test_a_failed_installation_says_so_and_is_tried_again(door: Door) -> None:
    door.stamp.unlink()
    Door.script(door.home / ".venv" / "bin" / "python", '[ "$2" != pip ] || { echo "no route to host"; exit 1; }')
    for _ in range(2):
        done = door.run("status", PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
        assert done.returncode == 1
        assert "no route to host" in done.stderr
        assert "check the network" in done.stderr
        assert not door.stamp.exists()


def test_two_first_uses_at_once_install_once(door: Door) -> None:
    door.stamp.unlink()
    Door.script(
        door.home / ".venv" / "bin" / "python",
        f'[ "$2" != pip ] || {{ sleep 0.3; echo "$*" >>"{door.home}/calls"; }}',
    )
    environ = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "SHOAL_NO_INSTALL": "1"}
    both = [subprocess.Popen([door.home / "shoal", "status"], env=environ, stderr=subprocess.DEVNULL) for _ in "12"]
    assert [process.wait() for process in both] == [0, 0]
    calls = (door.home / "calls").read_text().splitlines()
    assert len(calls) == 1
    assert "--no-deps --require-hashes" in calls[0]
    assert calls[0].endswith("requirements/server.lock")


def test_a_demo_does_not_wait_for_the_compilation_of_loops(door: Door) -> None:
    end, calls = door.home / "end", door.home / "calls"
    compiles = f'while [ ! -e "{end}" ]; do sleep 0.1; done'
    python = f'case "$*" in *loop_builder*) {compiles} ;; *) echo "$*" >>"{calls}" ;; esac'
    Door.script(door.home / ".venv" / "bin" / "python", python)
    door.stamp.unlink()
    environ = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "SHOAL_NO_INSTALL": "1"}
    try:  # it ends, and so do the pipes behind it, before the compiler does
        subprocess.run([door.home / "shoal", "demo"], env=environ, check=True, capture_output=True, timeout=300)
    finally:
        end.touch()
    assert calls.read_text().splitlines()[-1] == "-m shoal.cli demo"


@pytest.mark.parametrize("newer", ["packages", "checkout"])
def test_loops_are_compiled_and_tests_collected_once_before_the_workers_start(newer: str, door: Door) -> None:
    calls, stamp, tests = door.home / "calls", door.home / ".venv" / "test-stamp", door.home / "tests" / "conftest.py"
    python = f'case "$*" in *filters*) sleep 0.3 ;; esac; echo "$*" >>"{calls}"'
    Door.script(door.home / ".venv" / "bin" / "python", python)
    if newer == "packages":
        stamp.unlink()
    else:
        tests.parent.mkdir()
        tests.touch()
        os.utime(stamp, (1, 1))
    assert door.run("test", "-m", "core").returncode == 0
    *before, last = calls.read_text().splitlines()
    assert last.startswith("-m pytest -n")
    for work in (
        "loop_builder",
        "engine.warm_up",
        "filters.index.warm_up",
        "balance.warm_up",
        "-m pytest --collect-only --quiet",
    ):
        assert any(work in line for line in before), work
    assert door.run("test", "-m", "core").returncode == 0
    assert len(calls.read_text().splitlines()) == len(before) + 2, "once"


@pytest.mark.parametrize(
    ("words", "locks"),
    [
        (("demo", "--seconds", "20", "--headless"), ["server"]),
        (("up",), ["server"]),
        (("pub", "a"), ["server"]),
        (("soak", "channels"), ["server"]),
        (("history", "a", "--since", "1m"), ["server"]),
        (("history", "a", "--since", "1m", "--archive", "x"), ["server", "bench"]),
        (("bench", "match"), ["server", "bench"]),
        (("experiment", "dynamoth-1"), ["server", "bench"]),
        (("test", "-m", "core"), ["server", "test"]),
        (("check",), ["server", "test", "spark-build", "spark"]),
        (("pipeline", "load"), ["server", "bench", "spark-build", "spark"]),
        (("sim", "channels"), ["server"]),
        (("sim", "queue"), ["server", "bench"]),
    ],
)
def test_a_command_installs_what_it_needs(words: tuple[str, ...], locks: list[str], door: Door, tmp_path: Path) -> None:
    for name in LOCKS:
        (door.home / ".venv" / f"{name}-stamp").unlink()
    Door.script(door.home / ".venv" / "bin" / "python", f'[ "$2" != pip ] || echo "$*" >>"{door.home}/calls"')
    java, path = java_home(tmp_path / "java"), f"{Path(sys.executable).parent}:/usr/bin:/bin"
    for _ in range(2):  # and the second time nothing
        assert door.run(*words, PATH=path, JAVA_HOME=java).returncode == 0
    calls = (door.home / "calls").read_text().splitlines()
    assert [Path(line.split()[-1]).stem for line in calls] == locks
    assert all("--no-deps --require-hashes" in line for line in calls)


def java_home(directory: Path) -> str:
    """A directory with a Java in it."""
    Door.script(directory / "bin" / "java", "exit 0")
    return str(directory)


@pytest.mark.parametrize(
    "words",
    [
        ("pipeline", "load"),
        ("bench", "pipeline"),
        ("up", "--windows", "spark"),
        ("demo", "--windows=spark"),
        ("check",),
    ],
)
def test_spark_is_installed_by_the_first_command_that_needs_it_and_once(
    words: tuple[str, ...], door: Door, tmp_path: Path
) -> None:
    door.spark_stamp.unlink()
    python = f'[ "$2" != pip ] || echo "$*" >>"{door.home}/calls"'
    Door.script(door.home / ".venv" / "bin" / "python", python)
    for _ in range(2):
        done = door.run(*words, JAVA_HOME=java_home(tmp_path / "java"))
        assert done.returncode == 0, done.stderr
    build, spark = (door.home / "calls").read_text().splitlines()
    assert "--require-hashes" in build
    assert build.endswith("spark-build.lock")
    assert "--require-hashes --no-build-isolation" in spark
    assert spark.endswith("spark.lock")


@pytest.mark.parametrize(
    "words",
    [
        ("up",),
        ("status",),
        ("demo",),
        ("demo", "--windows", "in-process"),
        ("bench", "plan"),
        ("test", "-m", "core"),
        ("test", "-k", "one", "-m", "real"),
    ],
)
def test_other_commands_need_no_spark(words: tuple[str, ...], door: Door, tmp_path: Path) -> None:
    door.spark_stamp.unlink()
    done = door.run(*words, JAVA_HOME=java_home(tmp_path / "java"))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pipeline_job_without_java_or_without_spark_says_what_to_do(door: Door, tmp_path: Path) -> None:
    done = door.run("pipeline", "load", JAVA_HOME=str(tmp_path / "none"))
    assert done.returncode == 1
    assert "needs Java 17 or newer; on Debian 12, as root: apt-get install openjdk-17-jre-headless" in done.stderr
    door.spark_stamp.unlink()
    Door.script(door.home / ".venv" / "bin" / "python", '[ "$2" != pip ] || { echo "no route to host"; exit 1; }')
    done = door.run("pipeline", "load", JAVA_HOME=java_home(tmp_path / "java"))
    assert done.returncode == 1
    assert "could not install PySpark: check the network" in done.stderr


def test_tests_without_java_say_what_is_skipped(door: Door, tmp_path: Path) -> None:
    done = door.run("test", JAVA_HOME=str(tmp_path / "none"))
    assert done.returncode == 0
    assert "the tests of the pipeline are skipped" in done.stderr


def test_every_requirement_is_pinned_and_hashed_and_names_no_address() -> None:
    for lock in sorted((ROOT / "requirements").glob("*.lock")):
        text = lock.read_text().replace("\\\n", " ")
        assert "://" not in text
        for line in text.splitlines():
            assert re.match(r"[a-z0-9-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line), line


def test_the_locks_fit_into_one_environment() -> None:
    versions: dict[tuple[str, str], set[str]] = {}  # by package, and by the Python that the line is for
    for lock in sorted((ROOT / "requirements").glob("*.lock")):
        for name, version, marker in re.findall(r"^([a-z0-9.-]+)==([^ ;]+)([^\\]*)", lock.read_text(), re.MULTILINE):
            versions.setdefault((name, marker.strip()), set()).add(version)
    assert {key: found for key, found in versions.items() if len(found) > 1} == {}
    light = (ROOT / "requirements" / "server.lock").read_text()
    for heavy in ("pyspark", "moto", "polars", "duckdb", "mypy", "matplotlib", "pytest"):
        assert not re.search(rf"^{heavy}==", light, re.MULTILINE), heavy
