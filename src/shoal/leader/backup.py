"""A backup of the coordinator's data: what it holds, its file format, and how it is put back.

Owns the choice of keys and the format of the file. The file is secret: it contains the agents' secrets.

In the backup: the plan (format, public key, ring, entries), recording marks, the pool, requested moves, the balancer's
state and reasons, and the agents' secrets.

Not in it, because it is made again: leases and memberships (agents and leaders take them within one lease), reports of
agents, questions of commands and their answers, proposals, load windows. Not in it, because it is not in the
coordinator: users and passwords (ACL files), the cluster's private key, records of channels and their archive.

    b"shoal coordinator backup 1\\n", SHA-256 of the rest in hex and b"\\n", MessagePack of `Backup`
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

import msgspec

from shoal.balance.balancer_keys import ANSWERS_PREFIX, ASKS_PREFIX, PROPOSALS_PREFIX
from shoal.coordination.interface import Coordinator, KeyWrite, Versioned
from shoal.errors import BackupError, ConflictError, CoordinatorError, PlanError
from shoal.plan.format import require_format
from shoal.plan.keys import FORMAT_KEY, PUBLIC_KEY, RING_KEY, entries_prefix
from shoal.plan.signature import Verifier

AREAS: Final = ("plan/", "pool/", "moves/", "balance/", "secrets/")
PASSING: Final = (ASKS_PREFIX, ANSWERS_PREFIX, PROPOSALS_PREFIX)
"""Keys that lose their meaning with the command or the minute that made them."""

HEAD: Final = b"shoal coordinator backup "
FORMAT: Final = 1
READS_MAX: Final = 20
"""Attempts to read all areas without a change in between. After that the backup fails."""


class Backup(msgspec.Struct, frozen=True):
    """The saved keys, and when they were read."""

    created_at: float
    keys: dict[str, bytes]

    @property
    def public_key(self) -> bytes:
        """The key of the cluster that was saved."""
        return self.keys[PUBLIC_KEY]


async def read_backup(coordinator: Coordinator, now: float) -> Backup:
    """Read all keys as they were at one moment. BackupError if there is no plan, or if it keeps changing."""
    await require_format(coordinator)
    before = await _read_areas(coordinator)
    for _ in range(READS_MAX):
        found = await _read_areas(coordinator)
        if found == before:
            keys = {key: stored.value for key, stored in found.items()}
            if PUBLIC_KEY not in keys or RING_KEY not in keys:
                raise BackupError("the coordinator has no plan: there is nothing to save")
            return Backup(now, keys)
        before = found
    raise BackupError("the coordinator's data kept changing while it was read", do="try again when fewer channels move")


async def _read_areas(coordinator: Coordinator) -> dict[str, Versioned]:
    """All keys to save. Each area is one snapshot; two equal readings of all areas are a snapshot of all."""
    found: dict[str, Versioned] = {}
    for area in AREAS:
        found |= await coordinator.list(area)
    return {key: stored for key, stored in found.items() if not key.startswith(PASSING)}


async def restore_backup(coordinator: Coordinator, backup: Backup) -> int:
    """Put a backup into an empty coordinator, and return the number of keys written.

    A leader of the same cluster writes format, public key and ring into an empty coordinator by itself, so these do not
    count; of two rings the newer one stays. A leader also continues moves as soon as their entries are back, so an
    entry that is newer than the saved one stays too, and a restore can be repeated. Anything else refuses the restore,
    before anything is written.
    """
    written = 0
    for _ in range(READS_MAX):
        writes = await _missing(coordinator, backup)
        outcomes = await coordinator.write_all(writes)
        written += sum(isinstance(outcome, int) for outcome in outcomes)
        if not (refused := [outcome for outcome in outcomes if isinstance(outcome, CoordinatorError)]):
            return written
        if not all(isinstance(outcome, ConflictError) for outcome in refused):
            break  # a leader that writes the same keys meanwhile is no reason
    raise BackupError(f"the restore is incomplete ({refused[0]})", do="run the same command again")


async def _missing(coordinator: Coordinator, backup: Backup) -> list[KeyWrite]:
    """What must be written. BackupError if the coordinator has other data."""
    there = await _read_areas(coordinator)
    writes = []
    for key, value in backup.keys.items():
        kept = there.pop(key, None)
        if kept is None:
            writes.append(KeyWrite(key, value, 0))
        elif kept.value == value:
            continue
        elif key == RING_KEY:
            if _ring_version(backup, value) > _ring_version(backup, kept.value):
                writes.append(KeyWrite(key, value, kept.version))
        elif not (key.startswith(entries_prefix()) and _is_newer(backup, kept.value, value)):
            raise _not_empty(key)
    if others := sorted(there.keys() - {FORMAT_KEY, PUBLIC_KEY, RING_KEY}):
        raise _not_empty(others[0])
    return writes


def _ring_version(backup: Backup, ring: bytes) -> int:
    try:
        return Verifier(backup.public_key).ring(ring).version
    except PlanError as error:
        raise BackupError(
            f"the coordinator has the ring of another cluster ({error})",
            do="restore into an empty coordinator, or into that of the same cluster",
        ) from error


def _is_newer(backup: Backup, there: bytes, saved: bytes) -> bool:
    """Whether the coordinator's entry of a channel was written after the saved one, by the same cluster."""
    verifier = Verifier(backup.public_key)
    try:
        return verifier.entry(there).newness > verifier.entry(saved).newness
    except PlanError:
        return False


def _not_empty(key: str) -> BackupError:
    return BackupError(
        f"the coordinator is not empty: it has {key}", do="stop it, empty its directory, start it, and restore again"
    )


def write_file(path: Path, backup: Backup) -> int:
    """Write a backup to a new file that only its owner can read; return its size."""
    body = msgspec.msgpack.encode(backup)
    data = HEAD + b"%d\n" % FORMAT + hashlib.sha256(body).hexdigest().encode() + b"\n" + body
    new = path.with_name(f"{path.name}.new")
    try:
        if path.exists():
            raise BackupError(f"{path} exists", do="choose a new name")
        with open(new, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise BackupError(f"cannot write {path}: {error.strerror}", do="check the directory and its disk") from error
    return len(data)


def read_file(path: Path) -> Backup:
    """Read a backup. BackupError if the file is missing, damaged, or of a newer version."""
    try:
        head, digest, body = path.read_bytes().split(b"\n", 2)
    except OSError as error:
        raise BackupError(f"cannot read {path}: {error.strerror}", do="check the name of the file") from error
    except ValueError:
        head = digest = body = b""
    if not head.startswith(HEAD):
        raise BackupError(f"{path} is not a backup of a coordinator", do="check the name of the file")
    if head != HEAD + b"%d" % FORMAT:
        found = head.removeprefix(HEAD).decode(errors="replace")
        raise BackupError(
            f"{path} has format {found}, this process reads {FORMAT}", do="install the version that wrote it"
        )
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise BackupError(f"{path} is damaged: its checksum is wrong", do="use another backup")
    return msgspec.msgpack.decode(body, type=Backup)
