"""The meter of an agent: quotas per client and for all, charges for expensive messages, polite refusals."""

from __future__ import annotations

import msgspec

from shoal.channels.agent import meter as meter_module
from shoal.channels.agent.meter import CLIENTS_MAX, RETRY_MS_MAX, ControlMeter
from shoal.limits import DEFAULT_LIMITS

LIMITS = msgspec.structs.replace(
    DEFAULT_LIMITS,
    control_at_once_max=10,
    control_per_s_max=2,
    control_total_at_once_max=100,
    control_total_per_s_max=20,
)


def taken(meter: ControlMeter, client: int, count: int, now: float) -> int:
    return sum(meter.take(client, now) for _ in range(count))


def test_each_client_has_its_own_quota() -> None:
    meter = ControlMeter(LIMITS)
    assert taken(meter, 1, 50, 0.0) == 10
    assert taken(meter, 2, 50, 0.0) == 10
    assert taken(meter, 1, 50, 3.0) == 6


def test_all_clients_share_a_quota() -> None:
    meter = ControlMeter(LIMITS)
    assert sum(taken(meter, client, 5, 0.0) for client in range(50)) == 100
    assert sum(taken(meter, client, 5, 1.0) for client in range(50, 100)) == 20


def test_expensive_messages_are_paid_off_before_others_are_taken() -> None:
    meter = ControlMeter(LIMITS)
    assert meter.take(1, 0.0)
    meter.charge(1, 19)
    assert not meter.take(1, 4.0)
    assert meter.take(1, 6.0)
    assert meter.take(2, 0.0)


def test_a_client_is_told_how_long_to_wait_at_most_once_a_second() -> None:
    meter = ControlMeter(LIMITS)
    taken(meter, 1, 10, 0.0)
    meter.charge(1, 5)
    assert meter.retry_ms(1, 0.0) == 3000  # five of debt and one token, at two a second
    assert meter.retry_ms(1, 0.9) is None
    assert meter.retry_ms(1, 1.0) is not None
    meter.charge(1, 1e9)
    assert meter.retry_ms(1, 2.0) == RETRY_MS_MAX


def test_refusals_have_a_limit_too() -> None:
    meter = ControlMeter(LIMITS)
    refusals = [meter.retry_ms(client, 0.0) for client in range(2 * meter_module.REFUSALS_PER_S_MAX)]
    assert sum(refusal is not None for refusal in refusals) == meter_module.REFUSALS_PER_S_MAX


def test_made_up_clients_take_bounded_memory_and_leave_the_quotas_of_active_ones_alone() -> None:
    meter = ControlMeter(LIMITS)
    taken(meter, 1, 10, 0.0)
    for client in range(2, 5 * CLIENTS_MAX):
        meter.take(client, 0.0)
        if client % 1000 == 0:
            assert not meter.take(1, 0.0)
    assert len(meter._recent) + len(meter._before) <= 2 * CLIENTS_MAX
