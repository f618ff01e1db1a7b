"""The state diagrams of the documentation, generated from the transition tables of the code.

Owns the rendering and the place of each diagram in a page.

    python -m shoal.channels.diagrams docs/protocol-channels.md     updates the diagrams of a page

A page has a diagram between two marks, `<!-- states: link -->` and `<!-- end: link -->`. Only the text between them is
replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

from shoal.channels import states
from shoal.plan.steps import MOVE

State = TypeVar("State", bound=Enum)

PAGES: Final[Mapping[str, Mapping[str, Mapping[tuple[Any, str], Any]]]] = {
    "protocol-channels.md": {"link": states.LINK, "site": states.SITE, "lane": states.LANE, "agent": states.AGENT},
    "protocol-moves.md": {"move": MOVE},
    "recording.md": {"record": states.RECORD},
}
"""The pages with diagrams: the name of each diagram, and its table."""


def render(table: Mapping[tuple[State, str], State]) -> str:
    """A table as a Mermaid state diagram.

    The state of the first transition is the initial state; states without outgoing transitions are final.
    """
    first = next(iter(table))[0]
    kind = type(first)
    events: dict[tuple[State, State], list[str]] = {}
    for (before, event), after in table.items():
        events.setdefault((before, after), []).append(event)
    leaving = {before for before, _ in table}
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{_label(state)}" as {_id(state)}' for state in kind if _label(state) != _id(state)]
    lines.append(f"    [*] --> {_id(first)}")
    lines += [f"    {_id(before)} --> {_id(after)}: {' or '.join(names)}" for (before, after), names in events.items()]
    lines += [f"    {_id(state)} --> [*]" for state in kind if state not in leaving]
    return "\n".join(lines)


def replace_blocks(page: str, kind: str, blocks: Mapping[str, str]) -> str:
    """The page with the text between the marks of each block replaced; ValueError if a mark is missing."""
    for name, body in blocks.items():
        begin, end = f"<!-- {kind}: {name} -->", f"<!-- end: {name} -->"
        head, found, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the page has no marks for {name}: insert {begin} and {end}")
        page = f"{head}{begin}\n{body}\n{end}{tail}"
    return page


def refresh(name: str, page: str) -> str:
    """The page with all its diagrams updated."""
    blocks = {diagram: f"```mermaid\n{render(table)}\n```" for diagram, table in PAGES[name].items()}
    return replace_blocks(page, "states", blocks)


def _id(state: Enum) -> str:
    """A state's id in the diagram; `end` is reserved in Mermaid."""
    return "ended" if state.value == "end" else str(state.value)


def _label(state: Enum) -> str:
    """A state's name without underscores."""
    return str(state.value).replace("_", " ")


def main(argv: Sequence[str]) -> int:
    """Updates the diagrams of the given pages."""
    for name in argv:
        path = Path(name)
        path.write_text(refresh(path.name, path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
