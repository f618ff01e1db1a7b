"""The last refusals of a kind: bounded, found by request, and garbage is ignored."""

from __future__ import annotations

from shoal.plan.refusal import REASON_CHARACTERS_MAX, REFUSALS_MAX, Refusal, add_refusals, reason_of


def test_a_reason_is_found_by_unit_and_request() -> None:
    data = add_refusals("queue", None, [Refusal(b"a", 3, "full"), Refusal(b"b", 3, "gone")])
    assert reason_of("queue", data, b"a", 3) == "full"
    assert reason_of("queue", data, b"b", 3) == "gone"
    assert reason_of("queue", data, b"a", 4) is None
    assert reason_of("queue", None, b"a", 3) is None


def test_old_refusals_go_and_long_reasons_are_cut() -> None:
    data = None
    for number in range(REFUSALS_MAX + 1):
        data = add_refusals("queue", data, [Refusal(b"a", number, "x" * 2 * REASON_CHARACTERS_MAX)])
    assert reason_of("queue", data, b"a", 0) is None
    assert reason_of("queue", data, b"a", REFUSALS_MAX) == "x" * REASON_CHARACTERS_MAX


def test_garbage_counts_as_no_refusals() -> None:
    data = add_refusals("queue", b"\xc1", [Refusal(b"a", 1, "full")])
    assert reason_of("queue", data, b"a", 1) == "full"
    assert reason_of("channel", data, b"a", 1) is None
