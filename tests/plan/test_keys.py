"""The keys of the plan: every channel name has one, and it leads back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.coordination.names import check_path
from shoal.limits import Limits
from shoal.plan.keys import (
    ENTRIES_PREFIX,
    MOVES_PREFIX,
    PLAN_PREFIX,
    PUBLIC_KEY,
    REPORTS_PREFIX,
    RING_KEY,
    entry_channel,
    entry_key,
    move_channel,
    move_key,
    report_key,
)


@given(st.binary(min_size=1, max_size=Limits().channel_name_bytes_max))
def test_a_channel_and_its_key_lead_to_each_other(channel: bytes) -> None:
    key = entry_key(channel)
    assert key.startswith(PLAN_PREFIX)
    assert check_path("key", key) == key
    assert entry_channel(key) == channel
    key = move_key(channel)
    assert key.startswith(MOVES_PREFIX)
    assert check_path("key", key) == key
    assert move_channel(key) == channel
    assert entry_channel(key) is None


@pytest.mark.parametrize(
    "key",
    [
        PUBLIC_KEY,
        RING_KEY,
        ENTRIES_PREFIX,
        ENTRIES_PREFIX + "a b",
        ENTRIES_PREFIX + "QQ==",
        "plan/other/QQ",
        "QR",
    ],
)
def test_other_keys_are_no_entries(key: str) -> None:
    assert entry_channel(key) is None
    assert move_channel(key) is None


def test_a_report_has_the_name_of_its_server() -> None:
    assert report_key("s1") == REPORTS_PREFIX + "s1"
