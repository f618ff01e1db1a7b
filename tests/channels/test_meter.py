"""The meter of an agent: quotas per client and for all, charges for expensive messages, polite refusals."""

from __future__ import annotations

import msgspec
from tests.channels.observed import FRAME_BYTES_MAX, envelope, observed

from shoal.channels.agent.meter import REFUSALS_MAX, RETRY_MS_MAX, RETRY_MS_MIN, ControlMeter
from shoal.channels.telemetry.scanner import Scanner
from shoal.limits import DEFAULT_LIMITS
from shoal.wire import control
from shoal.wire.envelope import AGENT_CHANNEL, stream_id
from shoal.wire.identity import KEY_BYTES

LIMITS = msgspec.structs.replace(
    DEFAULT_LIMITS,
    control_at_once_max=10,
    control_per_s_max=2,
    control_total_at_once_max=100,
    control_total_per_s_max=20,
    new_channels_at_once_max=3,
    new_channels_per_s_max=1,
)


class Scene:
    def __init__(self) -> None:
        self.scanner = Scanner(FRAME_BYTES_MAX)
        self.meter = ControlMeter(LIMITS, self.scanner)

    def read(self, client: int, count: int, now: float, authentic: bool = True) -> int:
        """How many messages that name a client the agent sees."""
        self.meter.begin_turn(now)
        bye = [control.encode(control.Bye(b"tile", False), client, number) for number in range(1, count + 1)]
        self.scanner.feed(b"".join(observed(AGENT_CHANNEL, one) for one in bye), 1)
        seen = 0
        while self.scanner.scan() is not None:
            seen += 1
            if authentic:
                self.meter.charge(client, 1)
            else:
                self.meter.rejected()
        self.meter.end_turn()
        return seen

    def publish(self, client: int, channels: list[bytes], now: float) -> list[bytes]:
        """The channels of messages that the agent sees, of those that a client publishes."""
        self.meter.begin_turn(now)
        frames = [observed(channel, envelope(stream_id(client, 1), 1)) for channel in channels]
        self.scanner.feed(b"".join(frames), 1)
        seen = []
        while (frame := self.scanner.scan()) is not None:
            seen.append(frame.value[2])
        return seen


def test_each_client_has_its_own_quota() -> None:
    scene = Scene()
    assert scene.read(1, 50, 0.0) == 10
    assert scene.read(2, 50, 0.0) == 10
    assert scene.read(1, 50, 3.0) == 6
    assert scene.scanner.take_passed_over() == (0, 40 + 40 + 44, 0)


def test_messages_with_a_false_tag_do_not_use_up_the_quota_of_the_client_that_they_name() -> None:
    scene = Scene()
    assert scene.read(1, 50, 0.0, authentic=False) == 50
    assert scene.meter.take_refusals() == []
    assert scene.read(1, 50, 0.0) == 10


def test_messages_with_a_false_tag_use_a_part_of_the_quota_of_all_clients() -> None:
    """Otherwise a flood of them would take all of the agent's time."""
    scene = Scene()
    assert scene.read(1, 80, 0.0, authentic=False) == 80
    assert scene.read(1, 200, 0.0, authentic=False) == 80
    assert sum(scene.read(client, 5, 0.0) for client in range(2, 50)) == 60


def test_a_client_is_not_told_to_wait_because_of_messages_that_others_may_have_sent() -> None:
    """When the quota of all clients is used up, messages are passed over before they are authenticated."""
    scene = Scene()
    scene.scanner.set_secrets("s1", [bytes(KEY_BYTES)])
    assert scene.read(1, 100, 0.0, authentic=False) == 100
    assert scene.read(1, 100, 0.0, authentic=False) == 75
    assert scene.scanner.take_passed_over() == (0, 25, 0)
    assert scene.meter.take_refusals() == []


def test_all_clients_share_a_quota() -> None:
    scene = Scene()
    assert sum(scene.read(client, 5, 0.0) for client in range(1, 50)) == 100
    assert sum(scene.read(client, 5, 1.0) for client in range(50, 100)) == 20


def test_messages_on_new_channels_are_looked_up_within_a_quota_of_their_publisher() -> None:
    scene = Scene()
    scene.scanner.watch_new(metered=True)
    assert scene.publish(1, [b"a", b"b", b"c", b"d", b"e"], 0.0) == [b"a", b"b", b"c"]
    assert scene.publish(2, [b"f"], 0.0) == [b"f"]
    assert scene.scanner.take_passed_over() == (0, 0, 2)
    assert len(scene.scanner.channels()) == 6
    assert scene.publish(1, [b"d", b"e"], 1.0) == [b"d"]
    scene.scanner.watch(b"g", True)
    assert scene.publish(1, [b"g", b"h"], 1.0) == [b"g"]
    scene.scanner.watch_new()
    assert scene.publish(1, [b"i"], 1.0) == [b"i"]


def test_expensive_messages_are_paid_off_before_others_are_read_and_other_clients_do_not_pay() -> None:
    scene = Scene()
    assert scene.read(1, 1, 0.0) == 1
    scene.meter.charge(1, 1000)
    assert not scene.meter.allows(1)
    assert scene.read(1, 1, 400.0) == 0
    assert scene.read(2, 1, 400.0) == 1
    assert scene.read(1, 1, 500.0) == 1
    assert scene.meter.allows(1)


def test_messages_within_the_quota_are_allowed_while_they_wait() -> None:
    scene = Scene()
    assert scene.read(1, 10, 0.0) == 10
    assert scene.meter.allows(1)
    scene.meter.charge(1, 1)
    assert scene.meter.allows(1)
    scene.meter.charge(1, 1)
    assert not scene.meter.allows(1)


def test_a_client_is_told_once_how_long_to_wait() -> None:
    scene = Scene()
    scene.read(1, 10, 0.0)
    assert scene.meter.take_refusals() == []
    scene.read(1, 2, 0.0)
    scene.meter.charge(1, 5)
    assert scene.meter.take_refusals() == [(1, 2, 3000)]  # five of debt and one token, at two a second
    assert scene.meter.take_refusals() == []
    scene.meter.charge(1, 10**9)
    scene.meter.refuse(1, 7)
    scene.meter.refuse(2, 8)
    assert sorted(scene.meter.take_refusals()) == [(1, 7, RETRY_MS_MAX), (2, 8, RETRY_MS_MIN)]


def test_refusals_have_a_limit_too() -> None:
    scene = Scene()
    for client in range(1, 4 * REFUSALS_MAX):
        scene.meter.refuse(client, 1)
    assert len(scene.meter.take_refusals()) == REFUSALS_MAX
    assert scene.meter.take_refusals() == []
