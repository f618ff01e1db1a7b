"""Checks this machine for Shoal: one finding per line, with what to do.

Owns the checks of `shoal doctor`. It changes nothing. It starts programs to print their version, and a cluster of its
own to measure what an agent costs. Of servers it reads the settings.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import msgspec

from shoal.cluster.acl import ADMIN, client_publish_guarded
from shoal.cluster.process import is_running
from shoal.cluster.server_settings import check_settings
from shoal.cluster.servers import OLDEST, find_programs, free_port
from shoal.cluster.state import StateDir
from shoal.coordination.link import Address
from shoal.errors import (
    ClusterError,
    ConnectError,
    MissingExtraError,
    NoJavaError,
    PortInUseError,
    TlsError,
    VersionError,
)
from shoal.extras import needed
from shoal.pipeline.spark.java import find_java
from shoal.wire.tls import from_environment
from shoal.wire.tls_expiry import expires_at

PYTHON_MIN: Final = (3, 11)
OPEN_FILES_MIN: Final = 4096
MEMORY_MIN_BYTES: Final = 1 << 30
EXPIRY_WARN_S: Final = 14 * 86400
WEIGHT_MAX: Final = {
    "agent_rss_mb": 160.0,
    "agent_pss_mb": 90.0,
    "agent_start_cold_s": 5.0,
    "agent_start_warm_s": 1.0,
    "client_install_mb": 60.0,
}
"""What Shoal may cost. Starts take longer while other programs use the cores."""
_WEIGHTS: Final = (
    ("agent_rss_mb", "agent", "an idle agent: memory", "MB"),
    ("agent_pss_mb", "agent", "an idle agent: its share of memory (PSS)", "MB"),
    ("agent_start_warm_s", "agent", "start of an agent:", "s"),
    ("agent_start_cold_s", "agent", "start of an agent whose loops are not compiled yet:", "s"),
    ("client_install_mb", "client", "installation of a client:", "MB"),
)
_PORT_TRIES: Final = 20
_DAY_S: Final = 86400

Level = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """One finding: the check, its level, its text, and what to do if there is a problem."""

    check: str
    level: Level
    text: str
    do: str = ""


def examine(directory: StateDir, servers: Sequence[Address] = ()) -> list[Finding]:
    """Return all findings, in the order in which to fix them. The settings of `servers`, and of the data servers of a
    cluster that runs here, are checked too.
    """
    return [
        _python(),
        _environment(),
        *_servers(),
        _java(),
        _spark(),
        _cores(),
        _memory(),
        _open_files(),
        _ports(),
        _state(directory),
        *_engine(directory),
        *_certificates(directory),
        *map(_settings, (*_local_servers(directory), *servers)),
    ]


def weigh(quick: bool) -> tuple[dict[str, float | None], list[Finding]]:
    """What Shoal costs on this machine (see `shoal.cluster.weight`), and findings about it. `quick` measures nothing,
    and without the extra `server` there is no agent: figures that were not measured are None."""
    from shoal.cluster.client_size import client_install_mb

    figures: dict[str, float | None] = dict.fromkeys(WEIGHT_MAX)
    if quick:
        return figures, []
    figures["client_install_mb"] = client_install_mb()
    problem = None
    try:
        with needed("an agent"):
            from shoal.cluster.weight import measure_agent
        figures |= msgspec.to_builtins(measure_agent())
    except (ClusterError, ConnectError, MissingExtraError) as error:
        problem = Finding("agent", "warn", f"no agent could be measured: {error.what}", error.do or "")
    findings = [
        Finding(
            check,
            "ok" if value <= WEIGHT_MAX[name] else "warn",
            f"{text} {value:g} {unit}",
            "" if value <= WEIGHT_MAX[name] else f"at most {WEIGHT_MAX[name]:g} {unit} on an idle machine",
        )
        for name, check, text, unit in _WEIGHTS
        if (value := figures[name]) is not None
    ]
    return figures, [*findings, *([problem] if problem else [])]


def _local_servers(directory: StateDir) -> list[Address]:
    """Return the data servers and stores of a cluster that runs here."""
    try:
        state = directory.read() if directory.owner() is not None else None
    except (ClusterError, VersionError):
        return []
    if state is None:
        return []
    login = ADMIN, state.passwords[ADMIN], state.tls_for(ADMIN)
    return [Address(server.host, server.port, *login) for server in (*state.servers, *state.stores)]


def _settings(address: Address) -> Finding:
    found = check_settings(address)
    return Finding("settings", "ok" if found.fits else "warn", found.text, found.do)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < PYTHON_MIN:
        return Finding("python", "fail", f"Python {version}", "install Python 3.11 or newer")
    return Finding("python", "ok", f"Python {version}")


def _environment() -> Finding:
    if sys.prefix == sys.base_prefix:
        return Finding(
            "environment",
            "warn",
            "Shoal runs outside a virtual environment",
            "run it with ./shoal, which creates one",
        )
    return Finding("environment", "ok", sys.prefix)


def _servers() -> Iterator[Finding]:
    programs = find_programs()
    if not programs:
        yield Finding(
            "server",
            "fail",
            "no redis-server or valkey-server found",
            "apt install redis-server, or valkey-server",
        )
    for number, program in enumerate(programs):
        used = "used" if number == 0 else "not used"
        revision = f", package {program.revision}" if program.revision else ""
        text = f"{program.path}: {program.kind} {program.version_text}{revision} ({used})"
        if not program.usable:
            level: Level = "fail" if number == 0 else "warn"
            yield Finding("server", level, text, f"it is older than {OLDEST}: install a newer one")
        elif not program.safe:
            yield Finding("server", "warn", text, program.reason)
        elif not client_publish_guarded(program.version):
            yield Finding(
                "server",
                "warn",
                text,
                "before 7.0, clients cannot be prevented from publishing as agents: install 7.0 or newer",
            )
        else:
            yield Finding("server", "ok", f"{text}; {program.reason}")


def _java() -> Finding:
    try:
        java = find_java()
    except NoJavaError as error:
        return Finding("java", "warn", error.what, f"only needed for the Spark pipeline: {error.do}")
    return Finding("java", "ok", f"{java.path}: {java.text}")


def _spark() -> Finding:
    if find_spec("pyspark") is None:
        return Finding(
            "spark",
            "warn",
            "PySpark is not installed",
            "only needed for the Spark pipeline: ./shoal pipeline installs it, or pip install 'shoal[spark]'",
        )
    return Finding("spark", "ok", f"PySpark {version('pyspark')}")


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        return Finding("cores", "warn", "1 core", "it works, but servers, agents and clients share it")
    return Finding("cores", "ok", f"{cores} cores")


def _memory() -> Finding:
    available = 0
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    text = f"{available / 2**30:.1f} GiB of memory available"
    if available < MEMORY_MIN_BYTES:
        return Finding("memory", "warn", text, "stop other programs, or start fewer servers")
    return Finding("memory", "ok", text)


def _open_files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{'unlimited' if soft == resource.RLIM_INFINITY else soft} open files"
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES_MIN:
        return Finding("open files", "warn", text, f"a server needs one per client: ulimit -n {OPEN_FILES_MIN}")
    return Finding("open files", "ok", text)


def _ports() -> Finding:
    try:
        port = free_port(_PORT_TRIES)
    except PortInUseError as error:
        return Finding("ports", "fail", error.what, error.do or "")
    return Finding("ports", "ok", f"ports on loopback are free, for example {port}")


def _certificates(directory: StateDir) -> Iterator[Finding]:
    """The certificates of a local cluster that runs, and the configured files, if there are any: the first to expire
    of each."""
    files = from_environment(os.environ)
    local = sorted(directory.tls.glob("*.pem")) if directory.owner() is not None else []
    for paths in (local, [Path(path) for path in (files.ca, files.cert) if path]):
        try:
            left = sorted((expires_at(path) - time.time(), path) for path in paths)
        except TlsError as error:
            yield Finding("tls", "fail", error.what, error.do or "")
            continue
        for left_s, path in left[:1]:
            if left_s <= 0:
                yield Finding("tls", "fail", f"{path} has expired", "run `shoal tls renew`")
            elif left_s < EXPIRY_WARN_S:
                yield Finding("tls", "warn", f"{path} expires in {left_s / _DAY_S:.1f} days", "run `shoal tls renew`")
            else:
                yield Finding("tls", "ok", f"{path}, the first to expire, is valid for {left_s / _DAY_S:.0f} days")


def _engine(directory: StateDir) -> Iterator[Finding]:
    """The engine of a cluster that runs here."""
    try:
        state = directory.read()
    except (ClusterError, VersionError):
        return
    if state is None or directory.owner() is None:
        return
    processes = [one.pid for one in state.others.get("engine", ()) if is_running(one)]
    if processes:
        yield Finding("engine", "ok", f"an engine runs (process {', '.join(map(str, processes))})")
    else:
        yield Finding("engine", "ok", "no engine runs; the first `emit` or `match` starts it, unless --no-engine")


def _state(directory: StateDir) -> Finding:
    root = directory.root
    try:
        state = directory.read()
    except (ClusterError, VersionError) as error:
        return Finding("cluster", "fail", error.what, error.do or "")
    if directory.owner() is not None:
        return Finding("cluster", "ok", f"a cluster runs in {root}")
    if state is None and not directory.has_remains():
        return Finding("cluster", "ok", f"no cluster in {root}; `shoal up` starts one")
    left = sum(map(is_running, state.processes())) if state else 0
    return Finding(
        "cluster",
        "warn",
        f"{root} has leftovers of a cluster that was not shut down cleanly ({left} processes)",
        "run `shoal down`",
    )
