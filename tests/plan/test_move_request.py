"""What is said about moves: reports and requests survive their bytes, and garbage is refused."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import PlanError, ProtocolError
from shoal.plan.move_request import (
    ChannelReport,
    MoveReport,
    MoveRequest,
    decode_report,
    decode_request,
    encode_report,
    encode_request,
)
from shoal.plan.placement import Mode


def test_reports_and_requests_survive_their_bytes() -> None:
    report = MoveReport("s1", 7, {b"\xfftile": ChannelReport(5, 4, 3, 2, 1, True)})
    assert decode_report(encode_report(report)) == report
    request = MoveRequest(b"\xfftile", ("s1", "s2"), Mode.ALL_PUBLISHERS, True, "x")
    assert decode_request(encode_request(request)) == request


def test_the_format_and_the_kind_come_first() -> None:
    assert msgspec.msgpack.decode(encode_report(MoveReport("s1", 7, {}))) == [2, "channel", ["s1", 7, {}]]
    request = MoveRequest(b"tile", ("s1",), Mode.SINGLE, True, "x")
    format, kind, body = msgspec.msgpack.decode(encode_request(request))
    assert (format, kind, body["unit"]) == (2, "channel", b"tile")


@pytest.mark.parametrize(
    ("head", "words"),
    [((3, "channel"), "upgrade this process"), ((1, "channel"), "upgrade the process"), ((2, "lamp"), "about a lamp")],
)
def test_another_format_or_kind_is_refused_with_the_reason(head: tuple[int, str], words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        decode_report(msgspec.msgpack.encode([*head, ["s1", 7, {}]]))


@pytest.mark.parametrize(
    "report", [b"", b"garbage", encode_report(MoveReport("s1", 1, {b"c": ChannelReport(1, 1, -1, 0, 0, True)}))]
)
def test_a_garbled_report_is_refused(report: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_report(report)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_politely(data: bytes) -> None:
    for decode in (decode_report, decode_request):
        with contextlib.suppress(PlanError, ProtocolError):
            decode(data)
