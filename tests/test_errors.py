"""The exception tree: the drawing matches the classes, and messages say what to do."""

from __future__ import annotations

import inspect
import re

import pytest

from shoal import errors


def all_errors() -> dict[str, type[errors.ShoalError]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.ShoalError)
    }


def test_the_drawing_is_the_tree() -> None:
    assert errors.__doc__ is not None
    parents: list[str] = []
    drawn: dict[str, str | None] = {}
    for line in errors.__doc__.splitlines():
        if match := re.match(r"    ([│ ├└─]*)(\w+Error)\b", line):
            depth = len(match[1]) // 4
            drawn[match[2]] = parents[depth - 1] if depth else None
            parents[depth:] = [match[2]]
    real = {name: None if name == "ShoalError" else kind.__bases__[0].__name__ for name, kind in all_errors().items()}
    assert drawn == real


def test_a_message_says_what_happened_and_what_to_do() -> None:
    assert str(errors.PublishError("no room")) == "no room"
    assert str(errors.PublishError("no room", do="wait")) == "no room: wait"


@pytest.mark.parametrize(("broken_by", "blame"), [("us", "we broke"), ("peer", "the peer broke")])
def test_a_protocol_error_says_who_broke_the_protocol(broken_by: str, blame: str) -> None:
    error = errors.ProtocolError("garbage", broken_by="us" if broken_by == "us" else "peer")
    assert error.broken_by == broken_by
    assert str(error).startswith(blame)


def test_a_closed_bus_says_how_to_open_one() -> None:
    assert "shoal.connect()" in str(errors.BusClosedError())


def test_timeouts_and_lost_connections_are_also_the_standard_ones() -> None:
    assert issubclass(errors.SubscribeTimeoutError, TimeoutError)
    assert issubclass(errors.CoordinatorUnavailableError, ConnectionError)
