"""The audit log: a directory with one file for each decision and one for each outcome.

Owns the files, their names and their number. The content of a record and its replay are in
`shoal.balance.decision_record`. Decisions that change nothing are *quiet*; they have a limit of their own, so that they
do not displace the others.

    <time in ms>-<digest>.decision          a decision that changes something
    <time in ms>-<digest>.quiet             a decision that changes nothing
    <time in ms>-<digest>-<state>.outcome   the outcome of a decision
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from shoal.balance.decision_record import DecisionRecord, Outcome, decode_record, encode_record
from shoal.errors import PlanError

DIGEST_CHARACTERS: Final = 16
"""Number of leading characters of a digest in file names."""

_NAME: Final = re.compile(rf"(\d{{15}})-([0-9a-f]{{0,{DIGEST_CHARACTERS}}})(?:-(\w+))?\.(decision|quiet|outcome)")
_outcomes: Final = msgspec.json.Decoder(Outcome)


class AuditLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much is kept. Above each limit the oldest files are removed."""

    decisions_max: int = 1000
    """Decisions that changed something."""

    quiet_max: int = 30
    """Decisions to change nothing."""

    outcomes_max: int = 4000
    """Outcomes of decisions."""

    bytes_max: int = 512 * 1024 * 1024
    """Total size of the decisions. The newest one is kept whatever its size."""


class AuditFile(msgspec.Struct, frozen=True):
    """A file of the log, parsed from its name."""

    path: Path
    at_s: float
    digest: str
    """The first characters of the digest."""
    kind: str
    """decision, quiet or outcome."""


class AuditLog:
    """Writes and reads the log in one directory. All calls block."""

    def __init__(self, directory: Path, limits: AuditLimits | None = None) -> None:
        self.directory = directory
        self._limits = limits or AuditLimits()

    def write_decision(self, record: DecisionRecord, *, quiet: bool) -> Path:
        """Writes a decision."""
        name = f"{round(record.at_s * 1000):015d}-{record.digest[:DIGEST_CHARACTERS]}"
        path = self.directory / f"{name}.{'quiet' if quiet else 'decision'}"
        self._write(path, encode_record(record))
        self._prune()
        return path

    def write_outcome(self, outcome: Outcome) -> None:
        """Writes the outcome of a decision."""
        name = f"{round(outcome.at_s * 1000):015d}-{outcome.digest[:DIGEST_CHARACTERS]}-{outcome.state}"
        self._write(self.directory / f"{name}.outcome", msgspec.json.encode(outcome) + b"\n")
        self._prune()

    def files(self, *kinds: str) -> list[AuditFile]:
        """The files of some kinds, oldest first."""
        try:
            names = sorted(entry.name for entry in self.directory.iterdir())
        except FileNotFoundError:
            return []
        return [file for name in names if (file := self._file(name)) is not None and file.kind in kinds]

    def find(self, digest: str) -> DecisionRecord:
        """The newest record whose digest starts with `digest`; PlanError if none or several do."""
        found = {file.digest: file for file in self.files("quiet", "decision") if _matches(digest, file.digest)}
        if not digest or not found:
            raise PlanError(f"the audit log in {self.directory} has no decision {digest!r}", do="see shoal plan audit")
        if len(found) > 1:
            raise PlanError(f"{len(found)} decisions start with {digest}", do="give more of the digest")
        return self.read(next(iter(found.values())).path)

    @staticmethod
    def read(path: Path) -> DecisionRecord:
        """The record in a file; PlanError if it cannot be read."""
        try:
            return decode_record(path.read_bytes())
        except OSError as error:
            raise PlanError(f"{path} cannot be read: {error.strerror}", do="name a record of the audit log") from error

    def outcomes(self) -> Iterator[Outcome]:
        """The outcomes, oldest first. Unreadable files are skipped."""
        for file in self.files("outcome"):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                yield _outcomes.decode(file.path.read_bytes())

    def _file(self, name: str) -> AuditFile | None:
        match = _NAME.fullmatch(name)
        return AuditFile(self.directory / name, int(match[1]) / 1000, match[2], match[4]) if match else None

    def _write(self, path: Path, data: bytes) -> None:
        """Writes a file atomically, readable by its owner only."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        try:
            with open(new, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(data)
            new.replace(path)
        except OSError:
            new.unlink(missing_ok=True)  # a full disk must not be kept full by what did not fit
            raise

    def _prune(self) -> None:
        limits = self._limits
        for kind, most in (
            ("decision", limits.decisions_max),
            ("quiet", limits.quiet_max),
            ("outcome", limits.outcomes_max),
        ):
            for file in self.files(kind)[:-most]:
                file.path.unlink(missing_ok=True)
        files = self.files("decision", "quiet")
        sizes = [file.path.stat().st_size if file.path.exists() else 0 for file in files]
        total = sum(sizes)
        for file, size in zip(files[:-1], sizes, strict=False):
            if total <= limits.bytes_max:
                break
            file.path.unlink(missing_ok=True)
            total -= size


def _matches(digest: str, short: str) -> bool:
    """Whether a digest, or its first characters, match the shortened digest in a file name."""
    return short.startswith(digest) or digest.startswith(short)
