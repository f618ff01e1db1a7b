"""A token bucket: so many at once, so many a second, and debts are paid off first."""

from __future__ import annotations

import pytest

from shoal.channels.token_bucket import TokenBucket


def test_so_many_at_once_then_so_many_a_second() -> None:
    bucket = TokenBucket(3, 2, now=10.0)
    assert [bucket.take(1, 10.0) for _ in range(5)] == [True, True, True, False, False]
    assert [bucket.take(1, 11.0) for _ in range(3)] == [True, True, False]
    assert bucket.refill(1000.0) == 3


def test_a_debt_is_paid_off_before_anything_is_taken() -> None:
    bucket = TokenBucket(10, 1, now=0.0)
    assert bucket.take(15, 0.0)
    assert not bucket.take(1, 4.0)
    assert bucket.wait_s() == pytest.approx(2.0)
    assert bucket.take(1, 6.0)


def test_a_clock_that_goes_back_adds_nothing() -> None:
    bucket = TokenBucket(1, 1, now=5.0)
    assert bucket.take(1, 5.0)
    assert not bucket.take(1, 4.0)
