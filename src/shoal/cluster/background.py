"""Starting and stopping the background cluster from another process, whatever state it is in.

Owns what `shoal up` and `shoal down` do: the start of the supervisor, the wait for it, and the clean-up after
one that could not clean up itself. Ends only processes that the state directory names and that still are the
same.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from shoal.cluster import process
from shoal.cluster.control_socket import request
from shoal.cluster.local import ClusterStatus
from shoal.cluster.process import is_running, kill_stranger, log_tail, wait_until
from shoal.cluster.state import ClusterState, StateDir
from shoal.cluster.timing import DEFAULT_TIMING
from shoal.errors import AlreadyRunningError, ClusterError, NotRunningError

_START_TIMEOUT_S: Final = 3 * DEFAULT_TIMING.start_timeout_s
"""Coordinator, servers and agents each have `start_timeout_s`; the supervisor gives up by itself before this.
"""
_STOP_TIMEOUT_S: Final = 4 * DEFAULT_TIMING.stop_grace_s
_ASK_TIMEOUT_S: Final = 5.0


class Ended(msgspec.Struct, frozen=True):
    """What `down` found and ended."""

    clean: bool
    """Whether the supervisor ended by itself; if not, its remains were removed."""
    killed: int
    """Processes of the cluster that had to be killed one by one."""


def up(directory: StateDir, servers: int, agent: str = "", flags: Sequence[str] = ()) -> ClusterStatus:
    """Starts a background cluster and returns when it is ready; `agent` is the command of another agent, `flags` are
    more of the supervisor's."""
    if directory.owner() is not None:
        raise AlreadyRunningError(
            f"a cluster runs in {directory.root} already", do="use it, or stop it by `shoal down` first"
        )
    directory.prepare()
    _sweep(directory)
    directory.prepare()
    log = directory.log("supervisor")
    command = [sys.executable, "-m", "shoal.cluster.supervisor"]
    command += ["--state-dir", str(directory.root), "--servers", str(servers), "--agent", agent, *flags]
    supervisor = process.start_detached(command, log)
    try:
        ready = wait_until(lambda: directory.socket_file.exists() or supervisor.poll() is not None, _START_TIMEOUT_S)
    except BaseException:
        _end_start(directory, supervisor)
        raise
    if ready and supervisor.poll() is None:
        status = request(directory, "status", timeout_s=_ASK_TIMEOUT_S).status
        assert status is not None
        return status
    last_words = log_tail(log)
    _end_start(directory, supervisor)
    raise ClusterError("the cluster did not start", do=_take_failure(directory) or f"see its log\n{last_words}")


def down(directory: StateDir) -> Ended:
    """Ends the background cluster and everything that is left of it; NotRunningError if there is nothing."""
    owner = directory.owner()
    state = _read_or_none(directory)
    if owner is None and state is None and not directory.has_remains():
        raise NotRunningError(f"no cluster runs in {directory.root}", do="there is nothing to stop")
    clean = False
    if owner is not None:
        clean = _ask_to_end(directory) and wait_until(lambda: not is_running(owner), _STOP_TIMEOUT_S)
        if not clean:
            kill_stranger(owner, _STOP_TIMEOUT_S)
    killed = _kill_remains(state)
    if directory.root.exists():
        _sweep(directory)
    return Ended(clean, killed)


def _ask_to_end(directory: StateDir) -> bool:
    try:
        return request(directory, "down", timeout_s=_ASK_TIMEOUT_S).ok
    except ClusterError:
        return False


def _end_start(directory: StateDir, supervisor: subprocess.Popen[bytes]) -> None:
    """Ends a supervisor that is our own child and did not get ready; it takes its children with it."""
    if supervisor.poll() is None:
        supervisor.terminate()
        try:
            supervisor.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            supervisor.kill()
            supervisor.wait()


def _take_failure(directory: StateDir) -> str:
    """Why the supervisor says that it failed; what it left is removed, unless another one has taken the
    place."""
    try:
        why = directory.failure_file.read_text()
    except FileNotFoundError:
        why = ""
    if directory.owner() is None and directory.has_remains():
        _sweep(directory)
    directory.failure_file.unlink(missing_ok=True)
    return why


def _read_or_none(directory: StateDir) -> ClusterState | None:
    """What is written down; a file that nobody can read is as good as none when the cluster is to end."""
    try:
        return directory.read()
    except ClusterError:
        return None


def _kill_remains(state: ClusterState | None) -> int:
    """Ends the processes that a dead supervisor left, if there are any: they die with it, but not at once."""
    if state is None:
        return 0
    remains = list(state.processes())
    wait_until(lambda: not any(map(is_running, remains)), 1.0)
    return sum(kill_stranger(one, DEFAULT_TIMING.stop_grace_s) for one in remains)


def _sweep(directory: StateDir) -> None:
    """Removes what a cluster that has ended left in its directory."""
    lock = directory.lock()
    try:
        _kill_remains(_read_or_none(directory))
        directory.clear()
    finally:
        lock.close()
