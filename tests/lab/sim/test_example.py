"""The example in the simulator's docstring runs unchanged."""

from __future__ import annotations

import textwrap
from typing import Any

import shoal.lab.sim


def test_the_example_runs_and_messages_arrive() -> None:
    assert shoal.lab.sim.__doc__ is not None
    example = shoal.lab.sim.__doc__.partition("\n\n")[2].partition("\nOwns:")[0]
    names: dict[str, Any] = {}
    exec(textwrap.dedent(example), names)
    assert [b"subscribe", b"tile.1", 1] in names["client"].frames
    assert [b"message", b"tile.1", b"north"] in names["client"].frames
    assert names["coordinator"].store.get("plan/ring").value == b"..."
    assert names["world"].now == 90.0
