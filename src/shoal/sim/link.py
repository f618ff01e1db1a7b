"""A TCP-like connection: two directions, each in order, with what can happen to a stream of bytes and no
more.

Owns: the state of a connection's two directions and two ends. Never touches: nodes' lives, partitions, who
may connect (`shoal.sim.network` does these and calls in here), nor what the items mean.

What travels are *items* (commands, frames), each with a size. A stream that is cut inside an item is one that
is cut before it: a parser yields no half items, so whole items lose nothing of what resets at any byte can
do.

Invariants of a direction:
- What arrives is a prefix of what was sent, in order, whatever faults there are. Nothing is ever doubled.
- The last thing that arrives, if any, is the marker that ends the stream: "closed" after all that was sent,
  "reset" after a prefix of it.
- At most `window_bytes` (but at least one item) are on the way; the rest waits in the sender as
  `unsent_bytes`.
- An end is told of the loss of its connection at most once, and never of a loss that it asked for itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from shoal.sim.node import Node
from shoal.sim.wires import Handler, Wires
from shoal.sim.world import Event

STALL: Final = 1
PARTITION: Final = 2
DEAD: Final = 4
"""The receiving machine is off."""
PAUSED: Final = 8
"""The receiving process does not run."""
UNREAD: Final = 16
"""The receiving process does not read from this connection."""
UNACCEPTED: Final = 32
"""The receiving process has not accepted this connection yet."""
NETWORK: Final = STALL | PARTITION | DEAD
"""Blocks under which nothing is acknowledged, so that the sender gives up after `tcp_timeout_s`."""


class Endpoint:
    """One end of a connection, held by a process on `node`."""

    __slots__ = ("_into", "_out", "handler", "node", "open", "peer")

    node: Node
    peer: Endpoint
    handler: Handler | None
    _out: Direction
    _into: Direction

    def __init__(self, node: Node) -> None:
        self.node = node
        self.handler = None
        self.open = True

    def __repr__(self) -> str:
        return f"<Endpoint {self.node.name} to {self.peer.node.name}>"

    @property
    def unsent_bytes(self) -> int:
        """What was sent here but did not fit into the window yet: the process's own output buffer."""
        return self._out.unsent_bytes

    def send(self, item: Any) -> None:
        """Send one item; into a connection that is over it vanishes."""
        self._out.send([item], None)

    def send_all(self, items: list[Any], size_bytes: int | None = None) -> None:
        """Send several; the list is taken over. `size_bytes`, their sizes' sum, saves counting it."""
        if items:
            self._out.send(items, size_bytes)

    def close(self, *, flush: bool = True) -> None:
        """End the stream after what was sent; without `flush` what is still unsent is thrown away first."""
        if self._leave():
            self._out.finish(flush)

    def abort(self) -> None:
        """End the connection with a reset: of what is on the way a prefix arrives."""
        if self._leave():
            self._out.cut()
            self._out.end("reset")

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`: the window fills, then the peer's `unsent_bytes` grow."""
        self._into.block(UNREAD)

    def resume_reading(self) -> None:
        """Read again."""
        self._into.unblock(UNREAD)

    def lose(self, reason: str) -> None:
        """The connection is over for this end; tell the process. For the machinery of the links."""
        if self._leave() and self.handler is not None:
            self.handler.lost(self, reason)

    def _leave(self) -> bool:
        if not self.open:
            return False
        self.open = False
        self._out.wires.forget(self)
        return True


class _Batch:
    """Items that travel together; with `items` None it is the marker that ends the stream."""

    __slots__ = ("arrival", "items", "reason", "sent", "size")

    def __init__(self, sent: float, arrival: float, items: list[Any] | None, size: int, reason: str) -> None:
        self.sent = sent
        self.arrival = arrival
        self.items = items
        self.size = size
        self.reason = reason


class Direction:
    """One way of a connection, from `src` to `dst`. Only this module and `shoal.sim.network` use it."""

    __slots__ = (
        "_batches",
        "_delay",
        "_ended",
        "_in_flight_bytes",
        "_last_arrival",
        "_pump_event",
        "_severed",
        "_stalled_until",
        "_timeout_event",
        "_unacked",
        "_unsent",
        "blocks",
        "dst",
        "reverse",
        "src",
        "unsent_bytes",
        "wires",
    )

    reverse: Direction

    def __init__(self, wires: Wires, src: Endpoint, dst: Endpoint, delay: Callable[[], float]) -> None:
        self.wires = wires
        self.src = src
        self.dst = dst
        self.blocks = 0
        self.unsent_bytes = 0
        self._delay = delay
        self._batches: deque[_Batch] = deque()
        self._in_flight_bytes = 0
        self._unsent: deque[tuple[Any, int]] = deque()
        self._last_arrival = 0.0
        self._pump_event: Event | None = None
        self._timeout_event: Event | None = None
        self._stalled_until = 0.0
        self._severed = False  # nothing more is accepted
        self._ended = False  # the marker is on its way or has arrived
        self._unacked = False  # something was sent that nobody can have acknowledged

    def send(self, items: list[Any], size: int | None) -> None:
        """Accept items from the process at `src`."""
        if self._severed or not self.src.open:
            self.wires.stats["items_lost"] += len(items)
            return
        if size is None:
            size = sum(map(self.wires.size_of, items))
        if self._unsent or (self._in_flight_bytes + size > self.wires.options.window_bytes):
            size_of = self.wires.size_of
            self._unsent.extend((item, size_of(item)) for item in items)
            self.unsent_bytes += size
            self.refill()
        else:
            self._transmit(items, size)

    def refill(self) -> None:
        """Move what fits from the sender's buffer into the window; a paused sender cannot."""
        unsent = self._unsent
        if not unsent or self.src.node.paused:
            return
        room = self.wires.options.window_bytes - self._in_flight_bytes
        items: list[Any] = []
        size = 0
        while unsent and (size + unsent[0][1] <= room or (not items and not self._in_flight_bytes)):
            item, item_size = unsent.popleft()
            items.append(item)
            size += item_size
        if items:
            self.unsent_bytes -= size
            self._transmit(items, size)

    def finish(self, flush: bool) -> None:
        """An orderly end: what was sent, then the marker."""
        if flush and self._unsent and not self._severed:
            self._transmit([item for item, _ in self._unsent], self.unsent_bytes)
        else:
            self.wires.stats["items_lost"] += len(self._unsent)
        self._drop_unsent()
        self.end("closed")

    def end(self, reason: str) -> None:
        """Queue the marker; nothing is accepted afterwards. A stream ends once."""
        self.sever()
        if self._ended:
            return
        self._ended = True
        now = self.wires.world.now
        self._last_arrival = max(self._last_arrival, now + self._delay())
        self._batches.append(_Batch(now, self._last_arrival, None, 0, reason))
        self._schedule(self._last_arrival)

    def sever(self) -> None:
        """Accept nothing any more."""
        self._severed = True
        self.wires.stats["items_lost"] += len(self._unsent)
        self._drop_unsent()

    def cut(self) -> None:
        """Lose everything on the way from a random item on: a prefix will arrive. A marker that is there
        stays.
        """
        self.sever()
        count = sum(len(batch.items) for batch in self._batches if batch.items is not None)
        keep = self.wires.cuts.randint(0, count)
        self.wires.stats["items_lost"] += count - keep
        kept: deque[_Batch] = deque()
        for batch in self._batches:
            if batch.items is None:
                kept.append(batch)
            elif keep:
                del batch.items[keep:]
                keep -= len(batch.items)
                kept.append(batch)
        self._batches = kept

    def stall(self, duration_s: float) -> None:
        """Let nothing through for a while."""
        now = self.wires.world.now
        self._stalled_until = max(self._stalled_until, now + duration_s)
        self.wires.world.at(self._stalled_until, self._end_stall)
        self.block(STALL)

    def block(self, reason: int) -> None:
        """Let nothing arrive until `unblock` with the same reason."""
        if self.blocks & reason:
            return
        self.blocks |= reason
        if reason & NETWORK:
            self._check_timeout()
            self.reverse._check_timeout()

    def unblock(self, reason: int) -> None:
        """End one reason for which nothing arrives; without any left, what waited arrives in order."""
        if not self.blocks & reason:
            return
        self.blocks &= ~reason
        if self._batches and not self.blocks:
            self._schedule(max(self._batches[0].arrival, self.wires.world.now + self._delay()))
        if reason & NETWORK:
            self._check_timeout()
            self.reverse._check_timeout()

    def _transmit(self, items: list[Any], size: int) -> None:
        now = self.wires.world.now
        last = self._batches[-1] if self._batches else None
        if last is not None and last.sent == now and last.arrival > now and last.items is not None:
            last.items.extend(items)
            last.size += size
        else:
            arrival = now + self._delay()
            if arrival < self._last_arrival:
                arrival = self._last_arrival
            self._last_arrival = arrival
            self._batches.append(_Batch(now, arrival, items, size, ""))
            if self._pump_event is None:
                self._schedule(arrival)
        self._in_flight_bytes += size
        if (self.blocks | self.reverse.blocks) & NETWORK:
            self._check_timeout()

    def _schedule(self, time: float) -> None:
        if self._pump_event is None and not self.blocks:
            self._pump_event = self.wires.world.at(time, self._pump)

    def _pump(self) -> None:
        """Let the first batch arrive, if it may."""
        self._pump_event = None
        if self.blocks or not self._batches:
            return
        batch = self._batches[0]
        if batch.arrival > self.wires.world.now:
            self._schedule(batch.arrival)
            return
        items, size = self._take(batch)
        if self._batches:
            self._schedule(self._batches[0].arrival)
        self._in_flight_bytes -= size
        if items is None:
            self.dst.lose(batch.reason)
        elif self.dst.open:
            if self.dst.handler is not None:
                self.dst.handler.received(self.dst, items)
        else:
            self.wires.stats["items_lost"] += len(items)
            if self.src.open:
                self.reverse.end("reset")  # nobody has this connection any more, says the receiving kernel
        self.refill()

    def _take(self, batch: _Batch) -> tuple[list[Any] | None, int]:
        """The first batch, or sometimes only a first part of it; the rest comes later."""
        items = batch.items
        wires = self.wires
        split = wires.options.split_probability
        if items is None or len(items) < 2 or not split or wires.cuts.random() >= split:
            self._batches.popleft()
            return items, batch.size
        count = wires.cuts.randint(1, len(items) - 1)
        first = items[:count]
        size = sum(map(wires.size_of, first))
        batch.items = items[count:]
        batch.size -= size
        batch.arrival = wires.world.now + self._delay()
        self._last_arrival = max(self._last_arrival, batch.arrival)
        return first, size

    def _end_stall(self) -> None:
        if self.wires.world.now >= self._stalled_until:
            self.unblock(STALL)

    def _check_timeout(self) -> None:
        """The sender's patience runs while it has sent something and acknowledgements cannot come."""
        silent = (self.blocks | self.reverse.blocks) & NETWORK
        if not silent:
            self._unacked = False
        elif self._batches:
            self._unacked = True
        if silent and self._unacked and self.src.open:
            if self._timeout_event is None:
                wires = self.wires
                self._timeout_event = wires.world.after(wires.options.tcp_timeout_s, self._time_out)
        elif self._timeout_event is not None:
            self._timeout_event.cancel()
            self._timeout_event = None

    def _time_out(self) -> None:
        """The sender's kernel gives up; a process that is paused hears of it when it runs again."""
        self._timeout_event = None
        self.src.node.call(self._give_up)

    def _give_up(self) -> None:
        """What was not delivered is lost, and the peer is not told: it stays half-open, unless a reset was on its way
        to it already.
        """
        if not self.src.open:
            return
        self.wires.stats["timeouts"] += 1
        self.sever()
        lost = sum(len(batch.items) for batch in self._batches if batch.items is not None)
        self.wires.stats["items_lost"] += lost
        self._batches = deque(batch for batch in self._batches if batch.items is None)
        self._in_flight_bytes = 0
        self.src.lose("timeout")

    def _drop_unsent(self) -> None:
        self._unsent.clear()
        self.unsent_bytes = 0


def connect_ends(wires: Wires, first: Endpoint, second: Endpoint, delay: Callable[[], float]) -> None:
    """Lay the two directions between two fresh ends."""
    there = Direction(wires, first, second, delay)
    back = Direction(wires, second, first, delay)
    there.reverse, back.reverse = back, there
    first._out, first._into, first.peer = there, back, second
    second._out, second._into, second.peer = back, there, first


def directions(end: Endpoint) -> tuple[Direction, Direction]:
    """The ways out of and into an end. For `shoal.sim.network`."""
    return end._out, end._into
