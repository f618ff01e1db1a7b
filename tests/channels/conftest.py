"""The loops with which the tests of the scanner run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shoal.channels.telemetry import loop_image
from shoal.channels.telemetry.table_loops import PlainLoops


@pytest.fixture(scope="module", params=["machine", "plain"])
def every_loops(request: pytest.FixtureRequest) -> Iterator[None]:
    """The tests of a module, with machine code and again with the same loops as Python."""
    before = loop_image.current()
    if request.param == "plain":
        loop_image.use(PlainLoops())
    yield
    loop_image.use(before)
