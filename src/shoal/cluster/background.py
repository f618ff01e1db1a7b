"""Starts and stops the background cluster from another process, in whatever state it is.

Owns the work of `shoal up` and `shoal down`: starting the supervisor, waiting for it, and cleaning up after a
supervisor that crashed. It kills only processes that the state directory lists and that are still the same.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from shoal.cluster import process
from shoal.cluster.cluster_timeouts import DEFAULT_TIMING
from shoal.cluster.control_socket import request
from shoal.cluster.process import is_running, kill_process, log_tail, wait_until
from shoal.cluster.state import ClusterState, StateDir
from shoal.cluster.status import ClusterStatus
from shoal.errors import AlreadyRunningError, ClusterError, NotRunningError

_START_TIMEOUT_S: Final = 3 * DEFAULT_TIMING.start_timeout_s
"""Coordinator, servers and agents each have `start_timeout_s`; the supervisor itself gives up before this."""
_STOP_TIMEOUT_S: Final = 4 * DEFAULT_TIMING.stop_grace_s
_ASK_TIMEOUT_S: Final = 5.0


class StopResult(msgspec.Struct, frozen=True):
    """The result of `down`."""

    clean: bool
    """Whether the supervisor exited by itself; if not, its leftovers were removed."""
    killed: int
    """Number of processes that had to be killed one by one."""
    kept: bool = False
    """Whether the data of the cluster was kept, because it has stores."""


def up(directory: StateDir, servers: int, agent: str = "", flags: Sequence[str] = ()) -> ClusterStatus:
    """Start a background cluster and return when it is ready. `agent` is the command of another agent, `flags` are
    extra flags for the supervisor.
    """
    if directory.owner() is not None:
        raise AlreadyRunningError(
            f"a cluster is already running in {directory.root}", do="use it, or stop it with `shoal down` first"
        )
    directory.prepare()
    _clean_before_start(directory)
    directory.prepare()
    log = directory.log("supervisor")
    command = [sys.executable, "-m", "shoal.cluster.supervisor"]
    command += ["--state-dir", str(directory.root), "--servers", str(servers), "--agent", agent, *flags]
    supervisor = process.start_detached(command, log)
    try:
        ready = wait_until(lambda: directory.socket_file.exists() or supervisor.poll() is not None, _START_TIMEOUT_S)
    except BaseException:
        _abort_start(directory, supervisor)
        raise
    if ready and supervisor.poll() is None:
        status = request(directory, "status", timeout_s=_ASK_TIMEOUT_S).status
        assert status is not None
        return status
    log_end = log_tail(log)
    _abort_start(directory, supervisor)
    why = _failure_text(directory) or f"see its log\n{log_end}"
    raise ClusterError("the cluster did not start", do=f"{why}\nthe logs of all its processes are in {directory.logs}")


def down(directory: StateDir, purge: bool = False) -> StopResult:
    """Stop the background cluster and remove all leftovers; raises NotRunningError if there are none. The data of a
    cluster with stores is kept, and `shoal up` continues it, unless `purge` removes it too."""
    owner = directory.owner()
    state = _read_or_none(directory)
    if owner is None and state is None and not directory.has_remains():
        raise NotRunningError(f"no cluster runs in {directory.root}", do="there is nothing to stop")
    if owner is None and state is not None and state.stopped and not purge:
        raise NotRunningError(
            f"no cluster runs in {directory.root}; the stores of the last one are kept",
            do="continue it with `shoal up`, or remove its data with `shoal down --purge`",
        )
    clean = False
    if owner is not None:
        clean = _request_stop(directory) and wait_until(lambda: not is_running(owner), _STOP_TIMEOUT_S)
        if not clean:
            kill_process(owner, _STOP_TIMEOUT_S)
    killed = _kill_leftovers(state)
    kept = directory.resumable() if not purge else None
    if kept is not None and kept.stores:
        if not kept.stopped:
            _keep_leftovers(directory, kept)
        return StopResult(clean, killed, kept=True)
    if kept is None and not purge:
        directory.protect_stores()
    if directory.root.exists():
        _remove_leftovers(directory)
    return StopResult(clean, killed)


def _request_stop(directory: StateDir) -> bool:
    try:
        return request(directory, "down", timeout_s=_ASK_TIMEOUT_S).ok
    except ClusterError:
        return False


def _abort_start(directory: StateDir, supervisor: subprocess.Popen[bytes]) -> None:
    """Stop a supervisor, our own child, that did not become ready; its children die with it."""
    if supervisor.poll() is None:
        supervisor.terminate()
        try:
            supervisor.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            supervisor.kill()
            supervisor.wait()


def _failure_text(directory: StateDir) -> str:
    """Return the failure that the supervisor recorded, and remove its leftovers unless another one has started. Logs
    stay until the next start."""
    try:
        why = directory.failure_file.read_text()
    except FileNotFoundError:
        why = ""
    is_unused = directory.owner() is None and directory.resumable() is None and not directory.store_names()
    if is_unused and directory.has_remains():
        _remove_leftovers(directory, keep_logs=True)
    directory.failure_file.unlink(missing_ok=True)
    return why


def _read_or_none(directory: StateDir) -> ClusterState | None:
    """Return the recorded state; an unreadable file counts as none, because the cluster is being stopped."""
    try:
        return directory.read()
    except ClusterError:
        return None


def _kill_leftovers(state: ClusterState | None) -> int:
    """Kill remaining processes of a dead supervisor. They die with it, but not immediately."""
    if state is None:
        return 0
    remains = list(state.processes())
    wait_until(lambda: not any(map(is_running, remains)), 1.0)
    return sum(kill_process(one, DEFAULT_TIMING.stop_grace_s) for one in remains)


def _clean_before_start(directory: StateDir) -> None:
    """End the processes of a supervisor that was killed. Its cluster is kept if it can be continued."""
    if directory.resumable() is None:
        directory.protect_stores()
        _remove_leftovers(directory)
        return
    lock = directory.lock()
    try:
        _kill_leftovers(_read_or_none(directory))
        directory.clear_processes()
    finally:
        lock.close()


def _keep_leftovers(directory: StateDir, state: ClusterState) -> None:
    """Keep the data of a cluster whose supervisor was killed."""
    lock = directory.lock()
    try:
        directory.keep(state)
    finally:
        lock.close()


def _remove_leftovers(directory: StateDir, *, keep_logs: bool = False) -> None:
    """Remove the leftovers of a cluster that has ended."""
    lock = directory.lock()
    try:
        _kill_leftovers(_read_or_none(directory))
        directory.clear(keep_logs=keep_logs)
    finally:
        lock.close()
