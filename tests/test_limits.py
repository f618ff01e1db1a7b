"""Limits: documented, immutable, and rejected if they contradict each other."""

from __future__ import annotations

import ast
import inspect
import itertools
import math

import msgspec
import pytest

from shoal import limits
from shoal.errors import ConfigError
from shoal.limits import Limits


def test_the_defaults_go_together() -> None:
    Limits().validate()


def test_every_limit_is_followed_by_what_happens_there() -> None:
    body = next(
        node.body
        for node in ast.parse(inspect.getsource(limits)).body
        if isinstance(node, ast.ClassDef) and node.name == "Limits"
    )
    documented = [
        field.target.id
        for field, doc in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
    ]
    assert documented == list(Limits.__struct_fields__)


def test_every_name_has_a_unit() -> None:
    words = ("_bytes", "_messages", "_s", "_max", "_min")
    assert [name for name in Limits.__struct_fields__ if not name.endswith(words)] == []


def test_limits_are_immutable() -> None:
    with pytest.raises(AttributeError):
        Limits().linger_s = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
@pytest.mark.parametrize("name", Limits.__struct_fields__)
def test_a_limit_is_a_number_above_zero(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"limits.{name} is .*: give a number above 0"):
        msgspec.structs.replace(Limits(), **{name: value}).validate()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"payload_bytes_max": limits.MIB, "inbox_bytes_max": limits.KIB},
            "lower payload_bytes_max or raise inbox_by",
        ),
        (
            {"payload_bytes_max": limits.MIB, "resend_bytes_max": limits.KIB},
            "a resend window must hold the largest",
        ),
        ({"publish_buffer_bytes_max": limits.KIB}, "the buffer must hold the largest message"),
        ({"resend_total_bytes_max": limits.MIB}, "one window cannot be larger than all of them"),
        ({"command_reply_bytes_max": 8 * limits.MIB}, "raise command_reply_bytes_max"),
        ({"heal_page_messages": 5000}, "a publisher keeps no more than its window"),
        (
            {"heartbeat_interval_s": 2.0},
            r"2 times limits.heartbeat_interval_s \(2.0\) is above limits.server_lease_s \(3.0\)",
        ),
        ({"gap_timeout_s": 0.01}, "before they are given up"),
        ({"reconnect_delay_s_min": 9.0}, "lower reconnect_delay_s_min or raise reconnect_delay_s_max"),
        ({"subscribe_timeout_s": 0.6}, "a hello must be sent twice"),
        ({"clock_drift_max": 0.5}, "give a ratio below 0.5"),
    ],
)
def test_limits_that_cannot_go_together_are_refused_with_both_names(changes: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        msgspec.structs.replace(Limits(), **changes).validate()
