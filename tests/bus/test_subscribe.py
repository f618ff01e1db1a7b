"""The arguments of `subscribe` are checked before anything is opened."""

from __future__ import annotations

from typing import Any

import pytest

import shoal
from shoal.errors import FilterError
from shoal.filters import parse


@pytest.mark.parametrize("where", [5, b"a = 1", ["a = 1"], {"a": 1}, "volume >", ""])
def test_a_filter_that_is_none_is_refused_at_once(where: Any) -> None:
    bus = shoal.connect("shoal://localhost:1")
    with pytest.raises(FilterError):
        bus.subscribe("quotes", where=where)
    with pytest.raises(FilterError):
        bus.psubscribe("quo*", where=where)


def test_a_text_and_a_filter_are_taken() -> None:
    bus = shoal.connect("shoal://localhost:1")
    for where in ("a = 1", parse("a = 1")):
        assert bus.subscribe("quotes", where=where).where == parse("a = 1")
    assert bus.subscribe("quotes").where is None
