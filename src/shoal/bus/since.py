"""`subscribe(since=...)`: recorded messages, then live ones, without gaps or duplicates.

Owns the order of the steps. The live subscription is in force first; its messages wait in the inbox while the archive
and the records are read. When the inbox is full, publishers keep the rest (see `inbox_messages_max`). Then the history
is cut where the live messages begin, stream by stream, and the subscription continues from there. Agents record a
message before they answer a later subscriber, so the records reach the first live message; where they do not, the
publisher is asked for the missing messages, as for any gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from shoal.channels.client.subscription import SubscriptionCore
from shoal.errors import ShoalError, SubscribeError
from shoal.extras import needed
from shoal.filters.filter import Filter
from shoal.logs import get_log
from shoal.message import Item, Message
from shoal.wire.glob import glob_match

if TYPE_CHECKING:
    from shoal.bus.client import Bus
    from shoal.history.channel_history import ChannelHistory

REACH_S_MAX: Final = 3.0
"""How long to wait for the records to reach the first live messages. After that, the publishers are asked for the
rest. Holes before that are waited for up to `gap_timeout_s`, in which the recorder asks the publishers itself.
"""

PAUSE_S: Final = 0.1

_log: Final = get_log(__name__)


async def join_history(bus: Bus, core: SubscriptionCore, since_us: int, where: Filter | None) -> Iterator[Item]:
    """Return the history of a subscription in force, up to its first live messages. The subscription then delivers what
    follows.
    """
    with needed("reading recorded messages", "records"):
        from shoal.history.channel_history import ChannelHistory
        from shoal.history.server_reader import Login
        from shoal.history.table import matching, to_items

    loop = asyncio.get_running_loop()
    history = ChannelHistory(bus.ring.servers, Login(*bus.login), core.name, since_us, bus.archive, bus.runtime)
    began, heal_s_max = loop.time(), bus.limits.gap_timeout_s
    while True:
        ends = await asyncio.to_thread(_read, history)
        begins = core.live_from()
        waited_s = loop.time() - began
        reaches = waited_s >= REACH_S_MAX or _reaches(begins, history.reached(begins), ends)
        if reaches and (waited_s >= heal_s_max or not await asyncio.to_thread(history.unsettled, begins, heal_s_max)):
            break
        await asyncio.sleep(PAUSE_S)
        history.follow(bus.ring.servers)
    begins = core.live_from()
    live = [item.payload for item in core.inbox.items if isinstance(item, Message) and item.foreign]
    reached = history.reached(begins)
    shell = bus.shell
    shell.router.join_history(core, begins, _behind(begins, reached, ends, history.ended()), shell.now)
    if where is not None:
        core.apply_filter(where.matches)
    shell.flush()
    before = {stream: min(first, reached.get(stream, first) + 1) for stream, first in begins.items()}
    table = await asyncio.to_thread(history.joined, None, before, live)
    if not table.num_rows:
        await _check_recorded(bus, core)
    if where is not None:
        table = await asyncio.to_thread(matching, table, where)
    return iter(to_items(table, core.text))


def _read(history: ChannelHistory) -> Mapping[int, int]:
    """Read on; return the stream ends before the read. Entries written during the read may be included, but are not
    guaranteed.
    """
    ends = history.ends()
    history.read()
    return ends


def _behind(
    begins: Mapping[int, int], reached: Mapping[int, int], ends: Mapping[int, int], ended: set[int]
) -> dict[int, int]:
    """Return the last sequence number covered by the history, for each stream that may continue. For a stream without
    messages in the requested time, it is the end of its records.
    """
    behind = {stream: last for stream, last in reached.items() if stream in begins or stream not in ended}
    silent = {stream: ends[stream] for stream in begins if stream not in reached and ends.get(stream)}
    return {**behind, **silent}


def _reaches(begins: Mapping[int, int], reached: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    """Return whether the records reach the first live message of each stream."""
    return all((reached.get(stream) or ends.get(stream, 0)) + 1 >= first for stream, first in begins.items())


async def _check_recorded(bus: Bus, core: SubscriptionCore) -> None:
    """Raise SubscribeError if the history is empty because the channel is not recorded."""
    try:
        patterns = await bus.recorded_patterns()
    except ShoalError as error:
        _log.info("cannot check whether the channel is recorded", channel=core.text, why=str(error))
        return
    if not any(glob_match(pattern, core.name) for pattern in patterns):
        raise SubscribeError(
            f"no messages of {core.text!r} are recorded", do=f"run `shoal channels record {core.text}`, or omit since"
        )
