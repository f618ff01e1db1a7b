"""The keys of the plan: every unit has one, under its kind, and it leads back."""

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
    RING_KEY,
    entries_prefix,
    entry_key,
    entry_unit,
    move_key,
    move_unit,
    report_key,
)


@given(st.binary(min_size=1, max_size=Limits().channel_name_bytes_max))
def test_a_channel_and_its_key_lead_to_each_other(channel: bytes) -> None:
    key = entry_key(channel)
    assert key.startswith(PLAN_PREFIX)
    assert check_path("key", key) == key
    assert entry_unit(key) == channel
    key = move_key(channel)
    assert key.startswith(MOVES_PREFIX)
    assert check_path("key", key) == key
    assert move_unit(key) == channel
    assert entry_unit(key) is None


@pytest.mark.parametrize(
    "key",
    [
        PUBLIC_KEY,
        RING_KEY,
        ENTRIES_PREFIX,
        ENTRIES_PREFIX + "QQ",
        entries_prefix() + "a b",
        entries_prefix() + "QQ==",
        entry_key(b"A", "lamp"),
        "plan/other/QQ",
        "QR",
    ],
)
def test_other_keys_are_no_entries(key: str) -> None:
    assert entry_unit(key) is None
    assert move_unit(key) is None


def test_keys_carry_the_kind() -> None:
    assert entry_key(b"A") == "plan/entries/channel/QQ"
    assert move_key(b"A", "lamp") == "moves/lamp/QQ"
    assert report_key("s1") == "reports/channel/s1"
    assert entry_unit(entry_key(b"A", "lamp"), "lamp") == b"A"
    assert move_unit(move_key(b"A", "lamp"), "lamp") == b"A"
