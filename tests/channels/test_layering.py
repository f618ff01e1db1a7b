"""The parts of `shoal.channels` import each other in one direction: client and agent do not share code by accident."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SHOAL = Path(__file__).parent.parent.parent / "src" / "shoal"
CHANNELS = SHOAL / "channels"

MAY_IMPORT = {
    "client": set[str](),
    "telemetry": set[str](),
    "recording": set[str](),
    "agent": {"telemetry", "recording"},
}
"""The other parts that each part may import. Modules beside them (`states`, `timers` ...) are free for all."""


CLIENT_NAMES = {"router", "subscription", "context", "inbox", "enrolment"}
"""The modules of the client's part that shells use: `Router`, `SubscriptionCore`, effects and counters, statistics, and
`Enrolment`, which comes before a router."""


def imported_parts(part: str) -> set[str]:
    texts = [path.read_text() for path in sorted((CHANNELS / part).glob("*.py"))]
    assert texts
    found = {name for text in texts for name in re.findall(r"\bshoal\.channels\.(\w+)", text)}
    return (found & MAY_IMPORT.keys()) - {part}


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_of_channels_imports_lower_parts_only(part: str) -> None:
    assert imported_parts(part) <= MAY_IMPORT[part]


def test_other_packages_use_the_router_and_nothing_behind_it() -> None:
    others = [path for path in SHOAL.rglob("*.py") if not path.is_relative_to(CHANNELS / "client")]
    used = {name for path in others for name in re.findall(r"from shoal\.channels\.client\.(\w+)", path.read_text())}
    assert used == CLIENT_NAMES


def test_every_part_is_in_the_table() -> None:
    assert {path.parent.name for path in CHANNELS.glob("*/__init__.py")} == MAY_IMPORT.keys()
