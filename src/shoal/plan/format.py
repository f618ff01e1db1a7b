"""The format of the plan in the coordinator: one plain number, which every process reads before the plan.

Owns the number, and the behaviour if the coordinator has another one. A plan without a number is of format 1. A leader
upgrades it (`shoal.plan.upgrade`); every other process waits for that, or exits with advice.
"""

from __future__ import annotations

from typing import Final

from shoal.coordination.interface import Coordinator
from shoal.errors import VersionError
from shoal.plan.keys import FORMAT_KEY, PUBLIC_KEY, RING_KEY

FORMAT: Final = 2
"""The format that this version reads and writes."""
UNMARKED: Final = 1
"""The format of a plan without a number."""
VALUE: Final = str(FORMAT).encode()
"""The format as it is stored."""


def stored_format(value: bytes | None) -> int:
    """The format stored in the coordinator. VersionError if this process cannot read it."""
    if value is None:
        return UNMARKED
    text = value[:20].decode("ascii", "replace")
    if not text.isdecimal() or int(text) > FORMAT:
        raise VersionError(
            f"the plan in the coordinator is of format {text!r}, this process knows up to {FORMAT}",
            do="upgrade this process",
        )
    return int(text)


def check_format(value: bytes | None) -> None:
    """Raises VersionError if this process cannot use the plan: it is newer, or older and not upgraded yet."""
    if (found := stored_format(value)) < FORMAT:
        raise VersionError(
            f"the plan in the coordinator is of format {found}, this process needs {FORMAT}",
            do="start a leader of this version (`shoal balancer` or `shoal up`), which upgrades the plan",
        )


async def require_format(coordinator: Coordinator) -> None:
    """Raises VersionError if this process cannot use the plan in the coordinator. A missing plan is allowed."""
    await read_ring(coordinator)


async def read_ring(coordinator: Coordinator) -> bytes | None:
    """The signed ring in the coordinator; None if there is no plan yet. VersionError if this process cannot use it."""
    ring, _ = await read_ring_and_key(coordinator)
    return ring


async def read_ring_and_key(coordinator: Coordinator) -> tuple[bytes | None, bytes | None]:
    """The signed ring in the coordinator and the public key of the plan, as `read_ring`."""
    ring, stored, key = await _values(coordinator, RING_KEY, FORMAT_KEY, PUBLIC_KEY)
    if stored is not None or ring is not None:
        check_format(stored)
    return ring, key


async def _values(coordinator: Coordinator, *keys: str) -> list[bytes | None]:
    return [stored.value if stored else None for stored in await coordinator.get_all(keys)]
