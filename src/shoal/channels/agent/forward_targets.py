"""The forward targets of a channel on one server: the other servers to which its messages have to be forwarded.

Owns the rule by which an agent forwards. It is a function of the plan alone; `dispatcher` and its helpers keep the
state of each channel.

A message is not forwarded if all subscribers hear it where it was published:

    version of the placement in use, on a server of it    all subscribers use that placement
    any other, where publishers publish now               every subscriber hears this server, unless it is one of
                                                          several to which publishers send copies (all_publishers)

All other messages go to all servers of all placements that have not ended, also messages published by one of those
placements: it may be about to be left, or about to be used, and an agent cannot know whether the next phase has begun
elsewhere. Helped servers get every message that does not reach them otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from shoal.plan.book import PlanBook
from shoal.plan.entry import Entry, Phase
from shoal.plan.placement import Mode, Placement
from shoal.rules import ALL_RULES, Rules, rule

FORWARD_OLD_TO_NEW: Final = rule(
    "forward_old_to_new", "An agent forwards messages of publishers that have an old entry."
)
FORWARD_NEW_TO_OLD: Final = rule(
    "forward_new_to_old", "An agent forwards messages to servers with subscribers that have not followed a move."
)
HOME_HELP: Final = rule(
    "home_help", "An agent also forwards where its server has no part in the channel, such as at its home by the ring."
)
VERSION_IN_HEADER: Final = rule(
    "version_in_header", "The version in a message header names the placement that its publisher used."
)


Servers = tuple[str, ...]


class ForwardTargets:
    """Where an agent forwards the messages of one channel, until the plan changes."""

    __slots__ = (
        "_by_version",
        "_stale",
        "_versions",
        "astray",
        "concerned",
        "entry",
        "of_foreign",
        "of_streams",
        "publishing",
        "quiet_version",
        "watched",
    )

    def __init__(self, book: PlanBook, channel: bytes, server: str, rules: Rules = ALL_RULES) -> None:
        """`book` must hold a ring."""
        self._versions = VERSION_IN_HEADER in rules
        self.entry = entry = book.entry(channel)
        self.publishing = publishing = book.placement(channel)
        involved = server in (entry.servers if entry else publishing.servers)
        at_home = book.ring is not None and book.ring.home(channel) == server
        self.concerned = involved or at_home or (entry is not None and server in entry.helped)
        """Whether the conductor waits for reports of this server's agent about the channel."""
        self.astray = server not in publishing.servers
        """Whether clients that know the plan do not publish here."""
        subscribed = book.subscribed(channel)
        helped, everywhere = _helped(book, entry), _everywhere(book, entry, (*subscribed, publishing))
        if FORWARD_NEW_TO_OLD not in rules or not (involved or HOME_HELP in rules):
            helped = ()
        if FORWARD_OLD_TO_NEW not in rules or not (involved or HOME_HELP in rules):
            everywhere = ()
        all_of_them = (*everywhere, *helped)
        self._by_version: dict[int, Servers] = {}
        for placement in (*subscribed, publishing):
            if server in placement.servers:
                left = placement.version != publishing.version
                self._by_version[placement.version] = _unreached(placement, server, all_of_them if left else helped)
        enough = not self.astray and (publishing.mode is not Mode.ALL_PUBLISHERS or len(publishing.servers) == 1)
        self.of_foreign = _without(helped if enough else all_of_them, (server,))
        """The targets of a message without a header."""
        self.of_streams = _without(all_of_them if self.astray else helped, (server,))
        """The servers of subscribers that may have missed messages here while this agent was away."""
        self._stale = self.of_foreign if self._versions else _without(helped, (server,))
        moving = entry is not None and entry.phase is not Phase.END
        self.watched = moving or self.astray or bool(self.of_foreign) or any(self._by_version.values())
        self.quiet_version = publishing.version if self._by_version.get(publishing.version) == () else None
        """Messages with this version, if any, have reached all subscribers."""

    def of_version(self, version: int) -> Servers:
        """The targets of a message with this placement version."""
        return self._by_version.get(version, self._stale) if self._versions else self._stale

    def is_behind(self, version: int) -> bool:
        """Whether a publisher that uses this version does not know the channel's newest entry."""
        if self.entry is None or version == self.publishing.version or not self._versions:
            return False
        ahead = self.entry.phase in (Phase.PREPARE, Phase.WIDEN) and version == self.entry.placement.version
        return not ahead


def _helped(book: PlanBook, entry: Entry | None) -> Servers:
    """The helped servers that are in the ring."""
    return tuple(server for server in entry.helped if book.address(server)) if entry else ()


def _everywhere(book: PlanBook, entry: Entry | None, placements: Iterable[Placement]) -> Servers:
    """The servers of all placements that have not ended, including one that is being prepared: its subscribers may come
    before this agent hears of it."""
    servers = [server for placement in placements for server in placement.servers]
    if entry is not None and entry.phase is Phase.PREPARE:
        servers += [server for server in entry.placement.servers if book.address(server)]
    return tuple(dict.fromkeys(servers))


def _unreached(placement: Placement, server: str, aims: Servers) -> Servers:
    """Those of `aims` that a message of this placement has not reached. Of several servers that all got a copy, the
    first forwards."""
    if placement.mode is not Mode.ALL_PUBLISHERS:
        return _without(aims, (server,))
    return _without(aims, placement.servers) if server == placement.servers[0] else ()


def _without(servers: Iterable[str], reached: Collection[str]) -> Servers:
    return tuple(dict.fromkeys(server for server in servers if server not in reached))
