"""A local copy of a group of hosts in the coordinator: the hosts that are alive, with their addresses.

Owns the copy, its watch, and reading what members announce. An agent keeps its host in the group while the host answers
(`shoal.agents.lease_keeper`).

A reply can arrive after the watch has delivered newer members. The watch does not repeat them, so such a reply is not
used: the members are read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Final

import msgspec

from shoal.coordination.interface import Coordinator
from shoal.errors import CoordinatorError
from shoal.logs import get_log
from shoal.plan.ring import ServerAddress

_RETRY_S: Final = 1.0
_log: Final = get_log(__name__)
_address: Final = msgspec.msgpack.Decoder(ServerAddress)


class HostGroup:
    """The members of a group. `changed` is set at every change."""

    def __init__(self, coordinator: Coordinator, group: str, changed: asyncio.Event) -> None:
        self.hosts: Mapping[str, ServerAddress] | None = None
        """The addresses of the live hosts, by id; None before they were read."""
        self._coordinator = coordinator
        self._group = group
        self._changed = changed
        self._news = 0
        """How often the watch has delivered members."""

    async def follow(self) -> None:
        """Updates the copy until it is cancelled."""
        while True:
            try:
                async with aclosing(self._coordinator.watch_members(self._group)) as changes:
                    async for members in changes:
                        self._news += 1
                        self._take(members)
            except CoordinatorError as error:
                _log.warning("watch of a group failed", group=self._group, why=str(error))
            await asyncio.sleep(_RETRY_S)

    async def load(self) -> None:
        """Reads the members now, without waiting for the watch."""
        news = None
        while news != self._news:
            news = self._news
            members = await self._coordinator.members(self._group)
        self._take(members)

    def _take(self, members: Mapping[str, bytes]) -> None:
        self.hosts = {member: address for member, data in members.items() if (address := read_address(member, data))}
        self._changed.set()


def read_address(member: str, data: bytes) -> ServerAddress | None:
    """The address that a member announced; None, with a warning, if it cannot be read or has another id."""
    try:
        address = _address.decode(data)
    except msgspec.DecodeError as error:
        _log.warning("unreadable address of a member ignored", member=member, why=str(error))
        return None
    if address.id != member:
        _log.warning("address with another id ignored", member=member, announced=address.id)
        return None
    return address
