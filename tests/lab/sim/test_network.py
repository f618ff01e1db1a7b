"""Links, nodes and partitions of the simulated network."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.lab.sim import FaultOptions, Faults, LinkEnd, Network, World

CALM = FaultOptions(tcp_timeout_s=5.0, connect_timeout_s=3.0)
NUMBER_BYTES = 4


class Peer:
    """One side of a connection that remembers everything; `echo` sends back what arrives."""

    def __init__(self, echo: bool = False) -> None:
        self.echo = echo
        self.end: LinkEnd | None = None
        self.data = b""
        self.losses: list[str] = []
        self.failures: list[str] = []

    def connected(self, end: LinkEnd) -> None:
        self.end = end

    def failed(self, reason: str) -> None:
        self.failures.append(reason)

    def received(self, end: LinkEnd, data: bytes) -> None:
        self.data += data
        if self.echo:
            end.send(data)

    def lost(self, end: LinkEnd, reason: str) -> None:
        self.losses.append(reason)

    def accept(self, end: LinkEnd) -> Peer:
        self.end = end
        return self


class Pair:
    """A client and a server with a connection between them."""

    def __init__(self, seed: int = 1, options: FaultOptions = CALM, echo: bool = False) -> None:
        self.world = World(seed)
        self.network = Network(self.world, options)
        self.client_node = self.network.node("client")
        self.server_node = self.network.node("server")
        self.client, self.server = Peer(), Peer(echo)
        self.network.listen(self.server_node, self.server.accept)
        self.dial = self.network.connect(self.client_node, "server", self.client)
        self.world.run(1.0)

    @property
    def near(self) -> LinkEnd:
        assert self.client.end is not None
        return self.client.end

    @property
    def far(self) -> LinkEnd:
        assert self.server.end is not None
        return self.server.end

    def run_for(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)


def counted(count: int) -> bytes:
    """The numbers from 0, each in `NUMBER_BYTES`, so that every cut in the stream shows."""
    return b"".join(map(number_bytes, range(count)))


def number_bytes(number: int) -> bytes:
    return b"%04d" % number


def test_bytes_arrive_in_order_and_then_the_close() -> None:
    pair = Pair(options=replace(CALM, split_probability=0.5, delay_s=(0.0, 0.1), window_bytes=40))
    for number in range(200):
        pair.near.send(number_bytes(number))
        pair.world.run(pair.world.now + 0.001 * (number % 3))
    pair.near.close()
    pair.run_for(60.0)
    assert pair.server.data == counted(200)
    assert pair.server.losses == ["closed"]
    assert pair.client.losses == []
    assert pair.network.ends() == []


def test_connecting_without_a_listener_is_refused() -> None:
    pair = Pair()
    stranger = Peer()
    pair.network.node("quiet")
    pair.network.connect(pair.client_node, "quiet", stranger)
    pair.run_for(1.0)
    assert stranger.failures == ["refused"]


def test_a_machine_without_power_or_path_lets_attempts_time_out() -> None:
    pair = Pair()
    pair.server_node.crash(power=True)
    dark, cut = Peer(), Peer()
    pair.network.connect(pair.client_node, "server", dark)
    other = pair.network.node("other")
    pair.network.listen(other, Peer().accept)
    pair.network.partition(["other"], ["client"], one_way=True)
    pair.network.connect(pair.client_node, "other", cut)
    pair.run_for(2.0)
    assert (dark.failures, cut.failures) == ([], [])
    pair.run_for(2.0)
    assert (dark.failures, cut.failures) == (["timeout"], ["timeout"])


def test_an_attempt_into_a_partition_succeeds_when_it_heals_in_time() -> None:
    pair = Pair()
    late = Peer()
    partition = pair.network.partition(["client"], ["server"])
    pair.network.connect(pair.client_node, "server", late)
    pair.run_for(1.5)
    partition.heal()
    pair.run_for(1.5)
    assert late.end is not None
    assert late.failures == []


def test_a_cancelled_attempt_is_silent() -> None:
    pair = Pair()
    for wait in (0.0, 0.000_3, 0.002):
        unwanted = Peer()
        dial = pair.network.connect(pair.client_node, "server", unwanted)
        pair.run_for(wait)
        established = unwanted.end is not None
        dial.cancel()
        pair.run_for(1.0)
        assert (unwanted.end is not None) == established
        assert unwanted.failures == []


@given(seed=st.integers(0, 10**9), sent=st.integers(0, 60), wait_ms=st.integers(0, 30))
@settings(max_examples=200, deadline=None)
def test_a_reset_leaves_a_prefix_in_both_directions(seed: int, sent: int, wait_ms: int) -> None:
    options = replace(CALM, delay_s=(0.001, 0.02), split_probability=0.3, window_bytes=100)
    pair = Pair(seed, options)
    for number in range(sent):
        pair.near.send(number_bytes(number))
        pair.far.send(number_bytes(number))
        pair.run_for(pair.world.random.choice((0.0, 0.001)))
    pair.run_for(wait_ms / 1000)
    pair.network.reset(pair.near)
    pair.near.send(b"too late")
    pair.far.send(b"too late")
    pair.run_for(5.0)
    assert counted(sent).startswith(pair.server.data)
    assert counted(sent).startswith(pair.client.data)
    assert pair.server.losses == pair.client.losses == ["reset"]
    written = 2 * (len(counted(sent)) + len(b"too late"))
    assert len(pair.server.data) + len(pair.client.data) + pair.network.stats["bytes_lost"] == written


def test_resets_cut_at_any_byte_also_inside_one_write() -> None:
    lengths = set()
    for seed in range(60):
        pair = Pair(seed)
        pair.near.send(b"whole")
        pair.network.reset(pair.near)
        pair.run_for(5.0)
        lengths.add(len(pair.server.data))
    assert lengths == {0, 1, 2, 3, 4, 5}


def test_a_single_write_may_arrive_in_parts() -> None:
    firsts = set()
    for seed in range(60):
        pair = Pair(seed, replace(CALM, split_probability=1.0, delay_s=(0.01, 0.01)))
        pair.near.send(b"who")
        pair.near.send(b"le")
        pair.run_for(0.015)
        firsts.add(len(pair.server.data))
        pair.run_for(1.0)
        assert pair.server.data == b"whole"
    assert firsts >= {1, 2, 3, 4}


def test_a_sender_with_much_to_send_waits_for_a_good_part_of_the_window() -> None:
    """Small reads must not lead to small segments."""
    pair = Pair(options=replace(CALM, window_bytes=400, split_probability=1.0))
    data = counted(1000)
    unsent = [len(data)]
    pair.near.on_drain = lambda: unsent.append(pair.near.unsent_bytes)
    pair.server_node.pause()
    for number in range(1000):
        pair.near.send(number_bytes(number))
    pair.server_node.resume()
    pair.run_for(10.0)
    assert pair.server.data == data
    sizes = [before - after for before, after in pairwise(unsent)]
    assert unsent[-1] == 0
    assert min(sizes[:-1]) >= 100
    assert min(sizes[:-1]) < 400, "the whole window was not free each time"


def test_a_stall_delays_and_loses_nothing() -> None:
    pair = Pair(echo=True)
    pair.network.stall(pair.far, 2.0, one_way=True)
    pair.near.send(b"123")
    pair.far.send(b"other way")
    pair.run_for(1.9)
    assert pair.server.data == b""
    assert pair.client.data == b"other way"
    pair.run_for(1.0)
    assert pair.server.data == b"123"
    assert pair.client.data == b"other way123"
    assert pair.client.losses == []


def test_a_short_partition_stalls_and_a_long_one_times_out_the_sender_only() -> None:
    pair = Pair()
    partition = pair.network.partition(["client"], ["server"])
    pair.near.send(b"1")
    pair.run_for(4.0)
    partition.heal()
    pair.run_for(1.0)
    assert pair.server.data == b"1"

    partition = pair.network.partition(["client"], ["server"])
    pair.near.send(b"2")
    pair.run_for(6.0)
    assert pair.client.losses == ["timeout"]
    assert pair.server.losses == []
    partition.heal()
    pair.run_for(100.0)
    assert pair.server.losses == [], "half-open: it has not tried to send anything"
    pair.far.send(b"anybody there?")
    pair.run_for(1.0)
    assert pair.server.losses == ["reset"]
    assert pair.server.data == b"1"


def test_a_reset_on_its_way_arrives_though_the_sender_gives_up() -> None:
    pair = Pair()
    partition = pair.network.partition(["client"], ["server"])
    pair.near.send(b"1")
    pair.run_for(1.0)
    pair.network.reset(pair.far)
    pair.run_for(10.0)
    assert pair.client.losses == ["timeout"]
    partition.heal()
    pair.run_for(1.0)
    assert pair.server.losses == ["reset"], "otherwise it would stay half-open for ever"


def test_in_a_one_way_partition_data_arrives_but_acknowledgements_do_not() -> None:
    pair = Pair()
    pair.network.partition(["server"], ["client"], one_way=True)
    pair.near.send(b"1")
    pair.run_for(1.0)
    assert pair.server.data == b"1"
    pair.run_for(5.0)
    assert pair.client.losses == ["timeout"]


def test_a_process_that_dies_resets_its_peers_and_a_power_failure_does_not() -> None:
    pair = Pair()
    pair.server_node.crash()
    pair.run_for(1.0)
    assert pair.client.losses == ["reset"]

    pair = Pair()
    pair.server_node.crash(power=True)
    pair.run_for(100.0)
    assert pair.client.losses == []
    pair.near.send(b"1")
    pair.run_for(4.0)
    assert pair.client.losses == []
    pair.run_for(2.0)
    assert pair.client.losses == ["timeout"]


def test_a_restarted_machine_resets_connections_to_the_dead_process() -> None:
    pair = Pair()
    pair.server_node.crash(power=True)
    pair.near.send(b"1")
    pair.run_for(2.0)
    pair.server_node.restart()
    pair.run_for(1.0)
    assert pair.client.losses == ["reset"]
    assert pair.server.data == b""


def test_a_paused_process_gets_everything_when_it_resumes() -> None:
    pair = Pair(options=replace(CALM, window_bytes=30))
    pair.server_node.pause()
    pair.near.send(counted(50))
    pair.run_for(60.0)
    assert pair.server.data == b""
    assert pair.client.losses == [], "the kernel of a paused process acknowledges"
    assert pair.near.unsent_bytes > 0
    pair.server_node.resume()
    pair.run_for(5.0)
    assert pair.server.data == counted(50)
    assert pair.near.unsent_bytes == 0


def test_a_paused_process_writes_nothing_of_its_own_buffer() -> None:
    pair = Pair(options=replace(CALM, window_bytes=30))
    pair.near.send(counted(50))
    pair.client_node.pause()
    unsent = pair.near.unsent_bytes
    pair.run_for(5.0)
    assert pair.near.unsent_bytes == unsent > 0
    assert 0 < len(pair.server.data) < len(counted(50)), "the bytes in the kernel arrive"
    pair.client_node.resume()
    pair.run_for(5.0)
    assert pair.server.data == counted(50)


def test_a_paused_process_accepts_when_it_resumes() -> None:
    pair = Pair()
    pair.server_node.pause()
    other = Peer()
    first = pair.server.end
    pair.network.connect(pair.client_node, "server", other)
    pair.run_for(1.0)
    assert other.end is not None
    other.end.send(b"hello")
    pair.run_for(1.0)
    assert pair.server.end is first
    pair.server_node.resume()
    pair.run_for(1.0)
    assert pair.server.end is not first
    assert pair.server.data == b"hello"


def test_without_reading_the_peers_buffer_grows() -> None:
    pair = Pair(options=replace(CALM, window_bytes=32))
    pair.near.pause_reading()
    for number in range(20):
        pair.far.send(number_bytes(number))
        pair.run_for(0.1)
    assert pair.client.data == b""
    assert pair.far.unsent_bytes == len(counted(20)) - 32
    pair.far.close(flush=False)
    pair.near.resume_reading()
    pair.run_for(1.0)
    assert pair.client.data == counted(20)[:32], "exactly the bytes that fitted into the window"
    assert pair.network.stats["bytes_lost"] == len(counted(20)) - 32
    assert pair.client.losses == ["closed"]


def test_timers_wait_while_paused_and_die_with_the_process() -> None:
    pair = Pair()
    node = pair.client_node
    seen: list[str] = []
    node.after(1.0, seen.append, "paused")
    cancelled = node.after(1.0, seen.append, "cancelled")
    node.pause()
    pair.run_for(2.0)
    assert seen == []
    cancelled.cancel()
    node.resume()
    pair.run_for(0.1)
    assert seen == ["paused"]
    node.after(1.0, seen.append, "dead")
    node.crash()
    node.restart()
    pair.run_for(2.0)
    assert seen == ["paused"]


def test_clocks_drift_within_bounds_and_timers_follow_them() -> None:
    options = replace(CALM, clock_drift_max=0.1, clock_offset_s=(100.0, 200.0))
    network = Network(World(5), options)
    node = network.node("n")
    start = node.clock()
    assert 100.0 <= start <= 200.0
    seen: list[float] = []
    node.at(start + 10.0, lambda: seen.append(node.clock()))
    network.world.run(20.0)
    assert seen == [pytest.approx(start + 10.0)]
    assert 0.9 <= (node.clock() - start) / 20.0 <= 1.1
    assert (node.clock() - start) / 20.0 != 1.0


def test_options_are_checked_and_drawn_by_seed() -> None:
    with pytest.raises(ValueError, match="delay_s"):
        FaultOptions(delay_s=(2.0, 1.0))
    with pytest.raises(ValueError, match="spike_probability"):
        FaultOptions(spike_probability=1.5)
    drawn = [FaultOptions.draw(Random(seed)) for seed in range(40)]
    assert drawn[3] == FaultOptions.draw(Random(3))
    assert any(options.resets_per_s for options in drawn)
    assert any(not options.resets_per_s and not options.crashes_per_s for options in drawn)


class Chatter(Peer):
    """Connects again whenever it lost its connection, and counts up on each connection from 0."""

    def __init__(self, network: Network, name: str) -> None:
        super().__init__()
        self.network = network
        self.node = network.node(name)
        self.node.on_restart = self.start
        self.heard: list[tuple[str, str, int]] = []
        self.start()

    def start(self) -> None:
        self.next = 0
        self.end = None
        self.network.connect(self.node, "server", self)

    def connected(self, end: LinkEnd) -> None:
        self.end = end
        self.talk(end)

    def talk(self, end: LinkEnd) -> None:
        if end.open:
            end.send(number_bytes(self.next))
            self.next += 1
            self.node.after(0.05, self.talk, end)

    def failed(self, reason: str) -> None:
        self.node.after(0.5, self.start)

    def lost(self, end: LinkEnd, reason: str) -> None:
        self.network.world.note("lost", self.node.name, reason)
        self.node.after(0.1, self.start)


class CountingServer:
    """Checks on each connection that 0, 1, 2, ... arrive without a hole."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.node = network.node("server")
        self.node.on_restart = self.start
        self.start()

    def start(self) -> None:
        self.counts: dict[LinkEnd, int] = {}
        self.parts: dict[LinkEnd, bytes] = {}
        self.network.listen(self.node, self.accept)

    def accept(self, end: LinkEnd) -> CountingServer:
        self.counts[end] = 0
        self.parts[end] = b""
        return self

    def received(self, end: LinkEnd, data: bytes) -> None:
        stream = self.parts[end] + data
        while len(stream) >= NUMBER_BYTES:
            assert stream.startswith(number_bytes(self.counts[end]))
            stream = stream[NUMBER_BYTES:]
            self.counts[end] += 1
        self.parts[end] = stream
        self.network.world.note("received", end.peer.node.name, data)

    def lost(self, end: LinkEnd, reason: str) -> None:
        self.network.world.note("server lost", end.peer.node.name, reason)


def stormy_run(seed: int) -> tuple[list[tuple[Any, ...]], Faults]:
    options = FaultOptions(
        spike_probability=0.02,
        split_probability=0.2,
        window_bytes=64,
        tcp_timeout_s=3.0,
        clock_drift_max=0.02,
        resets_per_s=1.0,
        stalls_per_s=1.0,
        partitions_per_s=0.3,
        pauses_per_s=0.3,
        crashes_per_s=0.3,
    )
    world = World(seed, trace=True)
    network = Network(world, options)
    server = CountingServer(network)
    chatters = [Chatter(network, f"c{number}") for number in range(4)]
    names = list(network.nodes)
    faults = Faults(network, crashable=names, pausable=names, partitionable=names)
    faults.start()
    world.run(40.0)
    faults.stop()
    world.run(60.0)
    before = dict(server.counts)
    world.run(70.0)
    alive = [end.peer.node.name for end, count in server.counts.items() if count > before.get(end, 0)]
    assert sorted(alive) == sorted(chatter.node.name for chatter in chatters), "healed, so all talk again"
    assert world.trace is not None
    return world.trace, faults


@pytest.mark.parametrize("seed", range(25))
def test_streams_stay_whole_through_every_fault_and_recover(seed: int) -> None:
    stormy_run(seed)


def test_one_seed_is_one_history() -> None:
    first, faults = stormy_run(3)
    again, _ = stormy_run(3)
    other, _ = stormy_run(4)
    assert first == again
    assert first != other
    assert {"reset", "stall", "pause", "partition", "crash"} <= set(faults.counts)
