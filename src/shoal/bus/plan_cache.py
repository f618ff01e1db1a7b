"""A file with the last plan that a client knew. The client opens with it if neither coordinator nor servers answer.

Owns the files. There is one for each cluster address and user, readable by its owner only. Errors of the file system
are logged and ignored: a client without the file needs the coordinator or a server when it opens.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Final

from shoal.errors import ForgedEntryError
from shoal.logs import get_log
from shoal.plan.plan_copy import PlanCopy, decode_copy, encode_copy

FILES_MAX: Final = 64
"""Cached plans in a directory. The oldest are removed."""

_log: Final = get_log(__name__)


class PlanCache:
    """The file of one cluster. `identity` names the cluster's places and the user, without a password."""

    def __init__(self, directory: Path, identity: str) -> None:
        digest = hashlib.blake2s(identity.encode(), digest_size=12).hexdigest()
        self.path = directory / f"plan-{digest}"

    def read(self) -> PlanCopy | None:
        """Return the plan; None if there is none, or if the file is damaged."""
        try:
            return decode_copy(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ForgedEntryError) as error:
            _log.warning("cached plan not usable", file=str(self.path), why=str(error))
            return None

    def write(self, key: bytes, ring: bytes) -> None:
        """Replace the plan."""
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(new, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(encode_copy(key, ring))
            new.replace(self.path)
            self._drop_oldest()
        except OSError as error:
            _log.info("plan not cached", file=str(self.path), why=str(error))
            with contextlib.suppress(OSError):
                new.unlink()

    def _drop_oldest(self) -> None:
        """Keep the newest files only."""
        files = sorted(self.path.parent.glob("plan-*"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in files[FILES_MAX:]:
            path.unlink(missing_ok=True)
