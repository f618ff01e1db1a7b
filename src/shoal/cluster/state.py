"""The state directory: a local cluster records its addresses, passwords and processes here for other programs.

Owns the layout of the directory and the file `cluster.json`. Starts and stops nothing. Only the owner can read the
directory, because it holds the passwords and the key that signs the plan.

    cluster.json   processes and addresses
    key            the private key that signs rings and entries
    lock           held by the supervisor while it runs; contains its process id
    control.sock   the supervisor's socket for requests
    failure        why the last start failed, until it has been reported
    logs/          one file for each process; those of a failed start are kept until the next
    metrics-targets.json   the metrics pages, for Prometheus's file service discovery
    audit/         the balancer's decisions
    pipeline/      what Spark's jobs remember
    coordinator/, servers/, stores/   working directories of the servers and stores
    tls/           the authority and the certificates of a cluster with TLS; the authority outlives the cluster
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from shoal.cluster.metrics_ports import TARGETS_FILE
from shoal.cluster.process import ProcessId, is_running, start_ticks
from shoal.config import default_state_dir
from shoal.coordination.link import Address
from shoal.errors import AlreadyRunningError, ClusterError, ClusterNotFoundError, VersionError
from shoal.plan.ring import ServerAddress
from shoal.wire.tls import TLS_DIRECTORY, TlsSettings, role_files

FORMAT: Final = 2
"""The format of `cluster.json`."""
STATE_DIR_VARIABLE: Final = "SHOAL_STATE_DIR"
LET_GO_TIMEOUT_S: Final = 5.0
"""How long to wait for the lock of a supervisor that is dead."""
_LET_GO_POLL_S: Final = 0.02
_FILES: Final = (
    *("cluster.json", "cluster.json.new", "key", "control.sock", "control.sock.new", "failure", "lock"),
    *(TARGETS_FILE, TARGETS_FILE.replace(".json", ".new")),
)
_DIRECTORIES: Final = ("logs", "coordinator", "servers", "stores", "audit", "pipeline")
_KEPT: Final = ("tls",)
"""Directories that outlive a cluster."""


class ServerProcess(msgspec.Struct, frozen=True):
    """A server (or the coordinator) of the cluster: its address, and its process if it runs."""

    id: str
    host: str
    port: int
    process: ProcessId | None


class AgentRecord(msgspec.Struct, frozen=True):
    """The agent of a server or store, and its process if it runs."""

    server: str
    process: ProcessId | None


class ClusterState(msgspec.Struct, frozen=True):
    """A local cluster as described by its supervisor."""

    cluster: str
    started_at: float
    supervisor: ProcessId
    coordinator: ServerProcess
    servers: tuple[ServerProcess, ...]
    agents: tuple[AgentRecord, ...]
    passwords: dict[str, str]
    public_key: str
    balancers: tuple[ProcessId, ...] = ()
    max_out_bytes_per_s: float | None = None
    """Capacity of each server; None means the agent's own default."""
    pipeline: tuple[ProcessId, ...] = ()
    """The Spark job that folds load windows, if there is one."""
    others: dict[str, tuple[ProcessId, ...]] = {}
    """The processes of other kinds of hosts than servers, by kind."""
    tls_dir: str = ""
    """The directory of the certificates; empty means no TLS."""
    numbered: dict[str, int] = {}
    """By prefix of ids: the highest number that a host has had."""
    stores: tuple[ServerProcess, ...] = ()
    """The stores. With one, the end of the cluster keeps its data."""
    stopped: bool = False
    """Whether the cluster was stopped, and its stores, coordinator, key and passwords kept."""
    format: int = FORMAT

    def url_for(self, role: str) -> str:
        """The address of the cluster for a role. User and password are the same on the coordinator and all
        servers."""
        if role not in self.passwords:
            raise ClusterError(
                f"the cluster has no role {role!r}", do=f"use one of {', '.join(sorted(self.passwords))}"
            )
        return self.address_for(role).url

    def address_for(self, role: str) -> Address:
        """The address of the cluster for a role, as a record."""
        where = self.coordinator
        return Address(where.host, where.port, role, self.passwords[role], self.tls_for(role))

    def tls_for(self, role: str) -> TlsSettings | None:
        """The TLS files of a role; None without TLS."""
        return role_files(self.tls_dir, role) if self.tls_dir else None

    def server_addresses(self) -> tuple[ServerAddress, ...]:
        """The servers' addresses."""
        return tuple(
            ServerAddress(server.id, server.host, server.port, tls=bool(self.tls_dir)) for server in self.servers
        )

    def store_addresses(self) -> tuple[ServerAddress, ...]:
        """The stores' addresses."""
        return tuple(ServerAddress(store.id, store.host, store.port, tls=bool(self.tls_dir)) for store in self.stores)

    def processes(self) -> Iterator[ProcessId]:
        """All processes of the cluster except the supervisor."""
        endpoints = (self.coordinator, *self.servers, *self.stores)
        agents = (agent.process for agent in self.agents)
        known = [*(endpoint.process for endpoint in endpoints), *agents, *self.balancers, *self.pipeline]
        known += [process for processes in self.others.values() for process in processes]
        yield from (process for process in known if process is not None)


class _Marked(msgspec.Struct, frozen=True):
    """The format number of `cluster.json`, read before anything else. Format 1 had no number."""

    format: int = 1


class StateDir:
    """One state directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cluster_file = root / "cluster.json"
        self.key_file = root / "key"
        self.lock_file = root / "lock"
        self.socket_file = root / "control.sock"
        self.failure_file = root / "failure"
        self.targets_file = root / TARGETS_FILE
        self.logs = root / "logs"
        self.audit = root / "audit"
        self.tls = root / TLS_DIRECTORY

    def log(self, name: str) -> Path:
        """The log of one process."""
        return self.logs / f"{name}.log"

    def prepare(self) -> None:
        """Creates the directory, or checks that an existing one can be used."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            entries = {entry.name for entry in self.root.iterdir()}
        except OSError as error:
            raise ClusterError(
                f"the state directory {self.root} cannot be used: {error.strerror}",
                do="choose another with --state-dir",
            ) from error
        if strangers := entries - {*_FILES, *_DIRECTORIES, *_KEPT}:
            raise ClusterError(
                f"{self.root} is not a state directory: it contains {', '.join(sorted(strangers)[:3])}",
                do="choose an empty or a new one with --state-dir",
            )
        if self.root.stat().st_uid != os.geteuid():
            raise ClusterError(f"{self.root} belongs to another user", do="choose another with --state-dir")
        self.root.chmod(0o700)
        self.logs.mkdir(mode=0o700, exist_ok=True)

    def has_remains(self) -> bool:
        """Whether the directory contains files of a cluster and no other files."""
        try:
            entries = {entry.name for entry in self.root.iterdir()}
        except (FileNotFoundError, NotADirectoryError):
            return False
        return not entries <= {*_DIRECTORIES, *_KEPT} and entries <= {*_FILES, *_DIRECTORIES, *_KEPT}

    def lock(self) -> Lock:
        """Locks the directory for this process; AlreadyRunningError if a supervisor holds the lock.

        A killed supervisor counts as dead before its last thread has released the lock, so this waits for the release.
        """
        give_up_at = time.monotonic() + LET_GO_TIMEOUT_S
        while True:
            try:
                lock = Lock(self.lock_file)
            except AlreadyRunningError:
                if self.owner() is not None or time.monotonic() >= give_up_at:
                    raise
                time.sleep(_LET_GO_POLL_S)
                continue
            if lock.is_current():
                return lock
            lock.close()

    def owner(self) -> ProcessId | None:
        """The supervisor that holds the lock; None if there is none."""
        try:
            owner = msgspec.json.decode(self.lock_file.read_bytes(), type=ProcessId)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        return owner if is_running(owner) else None

    def write(self, state: ClusterState) -> None:
        """Writes the state atomically."""
        new = self.root / "cluster.json.new"
        write_private(new, msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
        new.replace(self.cluster_file)

    def read(self) -> ClusterState | None:
        """The recorded state; None if there is none. VersionError if another version of Shoal wrote it."""
        try:
            data = self.cluster_file.read_bytes()
            if (found := msgspec.json.decode(data, type=_Marked).format) != FORMAT:
                raise VersionError(
                    f"{self.cluster_file} has format {found}, this version of Shoal reads {FORMAT}",
                    do="stop the cluster with the version that started it; if none runs there, remove the file",
                )
            return msgspec.json.decode(data, type=ClusterState)
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise ClusterError(
                f"{self.cluster_file} belongs to another user", do="ask them, or run `shoal up`"
            ) from error
        except msgspec.DecodeError as error:
            raise ClusterError(
                f"cannot read {self.cluster_file}: {error}", do="run `shoal down`, then `shoal up`"
            ) from error

    def resumable(self) -> ClusterState | None:
        """The state of a cluster that can be continued: its supervisor was killed, or it was stopped and has stores,
        and its key and its coordinator's data are there. None if there is none, or if its files cannot be read."""
        try:
            state = self.read()
        except (ClusterError, VersionError):
            return None
        there = self.key_file.is_file() and (self.root / "coordinator").is_dir()
        return state if state is not None and there else None

    def store_names(self) -> list[str]:
        """The stores whose data is here."""
        try:
            return sorted(entry.name for entry in (self.root / "stores").iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def protect_stores(self) -> None:
        """Raises ClusterError if stores are here. Call it if the directory has no cluster that can be continued."""
        if stores := self.store_names():
            raise ClusterError(
                f"{self.root} has data of stores ({', '.join(stores[:3])}) of a cluster that cannot be continued: its "
                "cluster.json, key or coordinator is missing or cannot be read",
                do="restore them, choose another --state-dir, or remove the data with `shoal down --purge`",
            )

    def clear_processes(self) -> None:
        """Removes the files of a supervisor that was killed, and keeps those of its cluster."""
        for name in ("control.sock", "control.sock.new", "failure"):
            (self.root / name).unlink(missing_ok=True)

    def keep(self, state: ClusterState) -> None:
        """Keeps the files of a stopped cluster from which it can be continued."""
        self.write(msgspec.structs.replace(state, stopped=True))
        shutil.rmtree(self.root / "servers", ignore_errors=True)
        self.targets_file.unlink(missing_ok=True)
        self.clear_processes()
        self.lock_file.unlink(missing_ok=True)

    def clear(self, *, keep_logs: bool = False) -> None:
        """Removes all files of a cluster, and the directory itself if it is empty then."""
        for name in _DIRECTORIES[1:] if keep_logs else _DIRECTORIES:
            shutil.rmtree(self.root / name, ignore_errors=True)
        for name in _FILES:
            (self.root / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.root.rmdir()


class Lock:
    """An exclusive lock on a file that contains its holder. It is released by `close` or at the end of this
    process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise AlreadyRunningError(
                f"a cluster is already running in {path.parent}",
                do="use it, stop it with `shoal down`, or choose another --state-dir",
            ) from None
        owner = ProcessId(os.getpid(), start_ticks(os.getpid()) or 0)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, msgspec.json.encode(owner), 0)

    def is_current(self) -> bool:
        """Whether the locked file still has its name. Its last holder removes it."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Releases the lock."""
        os.close(self._descriptor)


def state_dir_at(path: str | Path | None) -> StateDir:
    """The named state directory, else $SHOAL_STATE_DIR, else the default of the settings."""
    chosen = path or os.environ.get(STATE_DIR_VARIABLE) or default_state_dir()
    return StateDir(Path(chosen).expanduser().absolute())


def find_cluster(state_dir: str | Path | None = None) -> ClusterState:
    """The running local cluster; ClusterNotFoundError, with advice, if there is none."""
    directory = state_dir_at(state_dir)
    state = directory.read()
    if state is None:
        raise ClusterNotFoundError(
            f"no cluster runs in {directory.root}",
            do="run `shoal up`, or set SHOAL_COORDINATOR to the address of another cluster: "
            "shoal://admin:PASSWORD@HOST:PORT",
        )
    if state.stopped:
        raise ClusterNotFoundError(
            f"the cluster in {directory.root} is stopped; its stores are kept", do="run `shoal up` to continue it"
        )
    if not is_running(state.supervisor):
        raise ClusterNotFoundError(
            f"the cluster in {directory.root} ended without cleaning up",
            do="run `shoal up` to continue it, or `shoal down` to remove it",
        )
    return state


def write_private(path: Path, data: bytes) -> None:
    """Writes a file that only its owner may read."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)
