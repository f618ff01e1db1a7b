"""A TCP-like connection: two byte streams, one in each direction, with the faults that TCP allows.

Owns: the state of a connection's two directions and two ends. Never touches: nodes, partitions and connection attempts
(`shoal.lab.sim.world.network` handles these and calls this module), nor what the bytes mean.

Invariants of a direction:
- Under all faults, the bytes that arrive are a prefix of those that were sent, in order and without duplicates.
- If the stream ends, an end marker arrives last: "closed" after all bytes, or "reset" after a prefix, which may end
  inside a command or a reply.
- At most `window_bytes` are in flight; the rest waits in the sender as `unsent_bytes`.
- An end is told at most once that its connection is lost, and not at all if it closed or aborted it itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from shoal.lab.sim.world.node import Node
from shoal.lab.sim.world.wires import Handler, Wires
from shoal.lab.sim.world.world import Event

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
"""With these blocks nothing is acknowledged, so the sender gives up after `tcp_timeout_s`."""

SPLIT_INSIDE: Final = 0.1
"""Factor by which a batch from a single write is split less often than one from several writes."""

SEGMENTS_PER_WINDOW: Final = 4
"""A sender waits until one part in this many of the window is free."""


class LinkEnd:
    """One end of a connection; a process on `node` holds it."""

    __slots__ = ("_into", "_out", "handler", "node", "on_drain", "open", "peer", "send")

    node: Node
    peer: LinkEnd
    handler: Handler | None
    send: Callable[[bytes], None]
    """Sends bytes. On a connection that has ended they are dropped."""
    _out: Direction
    _into: Direction

    def __init__(self, node: Node) -> None:
        self.node = node
        self.handler = None
        self.on_drain: Callable[[], None] | None = None
        """Called when unsent bytes have moved into the window."""
        self.open = True

    def __repr__(self) -> str:
        return f"<LinkEnd {self.node.name} to {self.peer.node.name}>"

    @property
    def unsent_bytes(self) -> int:
        """Bytes that do not fit into the window yet: the process's own output buffer."""
        return self._out.unsent_bytes

    def close(self, *, flush: bool = True) -> None:
        """Ends the stream after the bytes sent so far; without `flush`, unsent bytes are dropped first."""
        if self._leave():
            self._out.finish(flush)

    def abort(self) -> None:
        """Ends the connection with a reset: a prefix of the bytes in flight arrives."""
        if self._leave():
            self._out.cut()
            self._out.end("reset")

    def pause_reading(self) -> None:
        """Stops reading until `resume_reading`: the window fills up, then the peer's `unsent_bytes` grow."""
        self._into.block(UNREAD)

    def resume_reading(self) -> None:
        """Read again."""
        self._into.unblock(UNREAD)

    def lose(self, reason: str) -> None:
        """The connection has ended at this end: tells the process. For `Direction`."""
        if self._leave() and self.handler is not None:
            self.handler.lost(self, reason)

    def _leave(self) -> bool:
        if not self.open:
            return False
        self.open = False
        self._out.wires.forget(self)
        return True


class _Batch:
    """Bytes that travel together, in the pieces in which they were sent. `pieces` is None for the end marker of the
    stream."""

    __slots__ = ("arrival", "pieces", "reason", "sent", "size")

    def __init__(self, sent: float, arrival: float, pieces: list[bytes] | None, size: int, reason: str) -> None:
        self.sent = sent
        self.arrival = arrival
        self.pieces = pieces
        self.size = size
        self.reason = reason

    def shorten(self, size: int) -> None:
        """Keeps only the first bytes."""
        assert self.pieces is not None
        self.pieces, self.size = [b"".join(self.pieces)[:size]], size


class Direction:
    """One direction of a connection, from `src` to `dst`. Only this module and `shoal.lab.sim.world.network` use it."""

    __slots__ = (
        "_batches",
        "_cuts",
        "_delay",
        "_ended",
        "_in_flight_bytes",
        "_last_arrival",
        "_late_s",
        "_pump_event",
        "_severed",
        "_split",
        "_stalled_until",
        "_timeout_event",
        "_unacked",
        "_unsent",
        "_window_bytes",
        "_world",
        "blocks",
        "dst",
        "reverse",
        "src",
        "unsent_bytes",
        "wires",
    )

    reverse: Direction

    def __init__(self, wires: Wires, src: LinkEnd, dst: LinkEnd, delay: Callable[[], float]) -> None:
        self.wires = wires
        self.src = src
        self.dst = dst
        self.blocks = 0
        self.unsent_bytes = 0
        self._delay = delay
        self._world = wires.world
        self._cuts = wires.cuts
        self._split = wires.options.split_probability
        self._window_bytes = wires.options.window_bytes
        self._batches: deque[_Batch] = deque()
        self._in_flight_bytes = 0
        self._unsent: deque[bytes] = deque()
        self._last_arrival = 0.0
        self._late_s = 0.0
        self._pump_event: Event | None = None
        self._timeout_event: Event | None = None
        self._stalled_until = 0.0
        self._severed = False  # nothing more is accepted
        self._ended = False  # the marker is on its way or has arrived
        self._unacked = False  # bytes were sent and no acknowledgement can have come back

    def send(self, data: bytes) -> None:
        """Accepts bytes from the process at `src`."""
        size = len(data)
        if not size:
            return
        if self._severed or not self.src.open:
            self.wires.stats["bytes_lost"] += size
            return
        if self._unsent or self._in_flight_bytes + size > self._window_bytes:
            self._unsent.append(data)
            self.unsent_bytes += size
            self.refill()
        else:
            self._transmit(data)

    def refill(self) -> None:
        """Moves as many bytes as fit from the sender's buffer into the window, unless the sender is paused. Like TCP,
        it waits until a good part of the window is free, so that small reads do not lead to small segments."""
        unsent = self._unsent
        if not unsent or self.src.node.paused:
            return
        window = self._window_bytes
        room = window - self._in_flight_bytes
        if room < min(self.unsent_bytes, window // SEGMENTS_PER_WINDOW):
            return
        sent = False
        while unsent and room > 0:
            data = unsent.popleft()
            if len(data) > room:
                unsent.appendleft(data[room:])
                data = data[:room]
            room -= len(data)
            self.unsent_bytes -= len(data)
            self._transmit(data)
            sent = True
        if sent and self.src.on_drain is not None:
            self.src.on_drain()

    def finish(self, flush: bool) -> None:
        """Ends the stream in order: all bytes, then the marker."""
        if flush and self._unsent and not self._severed:
            self._transmit(b"".join(self._unsent))
            self.unsent_bytes = 0
            self._unsent.clear()
        self.end("closed")

    def end(self, reason: str) -> None:
        """Queues the marker. Nothing is accepted afterwards, and a second marker is ignored."""
        self.sever()
        if self._ended:
            return
        self._ended = True
        now = self.wires.world.now
        self._last_arrival = max(self._last_arrival, now + self._delay())
        self._batches.append(_Batch(now, self._last_arrival, None, 0, reason))
        self._schedule(self._last_arrival)

    def sever(self) -> None:
        """Stops accepting bytes."""
        self._severed = True
        self.wires.stats["bytes_lost"] += self.unsent_bytes
        self._unsent.clear()
        self.unsent_bytes = 0

    def cut(self) -> None:
        """Drops the bytes in flight from a random position on, so that a prefix arrives. A queued marker stays."""
        self.sever()
        count = sum(batch.size for batch in self._batches)
        keep = self.wires.cuts.randint(0, count)
        self.wires.stats["bytes_lost"] += count - keep
        kept: deque[_Batch] = deque()
        for batch in self._batches:
            if batch.pieces is None:
                kept.append(batch)
            elif keep:
                if batch.size > keep:
                    batch.shorten(keep)
                keep -= batch.size
                kept.append(batch)
        self._batches = kept
        self._delay_by_chance()

    def _delay_by_chance(self) -> None:
        options, rng = self.wires.options, self.wires.cuts
        if self._batches and options.late_probability and rng.random() < options.late_probability:
            self._late_s = rng.uniform(*options.late_s)
            for batch in self._batches:
                batch.arrival += self._late_s
            self._last_arrival += self._late_s

    def stall(self, duration_s: float) -> None:
        """Blocks delivery for a while."""
        now = self.wires.world.now
        self._stalled_until = max(self._stalled_until, now + duration_s)
        self.wires.world.at(self._stalled_until, self._end_stall)
        self.block(STALL)

    def block(self, reason: int) -> None:
        """Blocks delivery until `unblock` with the same reason."""
        if self.blocks & reason:
            return
        self.blocks |= reason
        if reason & NETWORK:
            self._check_timeout()
            self.reverse._check_timeout()

    def unblock(self, reason: int) -> None:
        """Removes one reason for blocking. When none is left, the waiting batches arrive in order."""
        if not self.blocks & reason:
            return
        self.blocks &= ~reason
        if self._batches and not self.blocks:
            self._schedule(max(self._batches[0].arrival, self.wires.world.now + self._delay() + self._late_s))
        if reason & NETWORK:
            self._check_timeout()
            self.reverse._check_timeout()

    def _transmit(self, data: bytes) -> None:
        now = self._world.now
        size = len(data)
        last = self._batches[-1] if self._batches else None
        if last is not None and last.sent == now and last.arrival > now and last.pieces is not None:
            last.pieces.append(data)
            last.size += size
        else:
            arrival = now + self._delay()
            if arrival < self._last_arrival:
                arrival = self._last_arrival
            self._last_arrival = arrival
            self._batches.append(_Batch(now, arrival, [data], size, ""))
            if self._pump_event is None and not self.blocks:
                self._pump_event = self._world.at(arrival, self._pump)
        self._in_flight_bytes += size
        if (self.blocks | self.reverse.blocks) & NETWORK:
            self._check_timeout()

    def _schedule(self, time: float) -> None:
        if self._pump_event is None and not self.blocks:
            self._pump_event = self._world.at(time, self._pump)

    def _pump(self) -> None:
        """Delivers the first batch, unless delivery is blocked."""
        self._pump_event = None
        batches, world = self._batches, self._world
        if self.blocks or not batches:
            return
        batch = batches[0]
        if batch.arrival > world.now:
            self._schedule(batch.arrival)
            return
        pieces, split = batch.pieces, self._split
        if pieces is None:
            batches.popleft()
            data = None
        else:
            single = len(pieces) == 1
            if single:
                split *= SPLIT_INSIDE
            if batch.size < 2 or not split or self._cuts.random() >= split:
                batches.popleft()
                data = pieces[0] if single else b"".join(pieces)
            else:
                data = self._take_part(batch, pieces)
        if batches:
            self._pump_event = world.at(batches[0].arrival, self._pump)
        dst = self.dst
        if data is None:
            dst.lose(batch.reason)
        else:
            self._in_flight_bytes -= len(data)
            world.mix(data)
            if dst.open:
                if dst.handler is not None:
                    dst.handler.received(dst, data)
            else:
                self.wires.stats["bytes_lost"] += len(data)
                if self.src.open:
                    self.reverse.end("reset")  # the receiving kernel has no process for this connection
        if self._unsent:
            self.refill()

    def _take_part(self, batch: _Batch, pieces: list[bytes]) -> bytes:
        """A part of the first batch; the rest follows later."""
        count = self._cuts.randint(1, batch.size - 1)
        data = b"".join(pieces)
        batch.pieces, batch.size = [data[count:]], batch.size - count
        batch.arrival = self._world.now + self._delay()
        self._last_arrival = max(self._last_arrival, batch.arrival)
        return data[:count]

    def _end_stall(self) -> None:
        if self.wires.world.now >= self._stalled_until:
            self.unblock(STALL)

    def _check_timeout(self) -> None:
        """Runs the sender's timeout while sent bytes cannot be acknowledged."""
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
        """The sender's kernel gives up. A paused process is told when it resumes."""
        self._timeout_event = None
        self.src.node.call(self._give_up)

    def _give_up(self) -> None:
        """Drops undelivered bytes without telling the peer, which stays half-open unless a reset was in flight
        to it already.
        """
        if not self.src.open:
            return
        self.wires.stats["timeouts"] += 1
        self.sever()
        self.wires.stats["bytes_lost"] += sum(batch.size for batch in self._batches)
        self._batches = deque(batch for batch in self._batches if batch.pieces is None)
        self._in_flight_bytes = 0
        self.src.lose("timeout")


def connect_ends(wires: Wires, first: LinkEnd, second: LinkEnd, delay: Callable[[], float]) -> None:
    """Connects two new ends with two directions."""
    there = Direction(wires, first, second, delay)
    back = Direction(wires, second, first, delay)
    there.reverse, back.reverse = back, there
    first._out, first._into, first.peer = there, back, second
    second._out, second._into, second.peer = back, there, first
    first.send, second.send = there.send, back.send


def directions(end: LinkEnd) -> tuple[Direction, Direction]:
    """The directions out of and into an end. For `shoal.lab.sim.world.network`."""
    return end._out, end._into
