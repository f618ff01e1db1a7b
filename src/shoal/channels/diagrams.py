"""The state diagrams of the documentation, drawn from the tables that the code steps through.

Owns the drawing and the place of each drawing in a page. Knows nothing of what the states mean.

    python -m shoal.channels.diagrams docs/*.md     draws all diagrams of the pages anew

In a page a drawing stands between two marks, `<!-- states: link -->` and `<!-- end: link -->`. What stands
between them is replaced; everything else is left as it is.
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

    The state of the first transition is where a machine begins; a state that nothing leads out of is where it ends.
    """
    first = next(iter(table))[0]
    kind = type(first)
    events: dict[tuple[State, State], list[str]] = {}
    for (before, event), after in table.items():
        events.setdefault((before, after), []).append(event)
    leaving = {before for before, _ in table}
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{_spoken(state)}" as {_id(state)}' for state in kind if _spoken(state) != _id(state)]
    lines.append(f"    [*] --> {_id(first)}")
    lines += [f"    {_id(before)} --> {_id(after)}: {' or '.join(names)}" for (before, after), names in events.items()]
    lines += [f"    {_id(state)} --> [*]" for state in kind if state not in leaving]
    return "\n".join(lines)


def replace_blocks(page: str, kind: str, blocks: Mapping[str, str]) -> str:
    """The page with what stands between the marks of each block replaced; ValueError if a mark is missing."""
    for name, body in blocks.items():
        begin, end = f"<!-- {kind}: {name} -->", f"<!-- end: {name} -->"
        head, found, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the page has no place for {name}: write {begin} and {end} where it belongs")
        page = f"{head}{begin}\n{body}\n{end}{tail}"
    return page


def refresh(name: str, page: str) -> str:
    """The page with all its diagrams drawn anew."""
    blocks = {diagram: f"```mermaid\n{render(table)}\n```" for diagram, table in PAGES[name].items()}
    return replace_blocks(page, "states", blocks)


def _id(state: Enum) -> str:
    """A state's name in the drawing; `end` is a word of Mermaid's own."""
    return "ended" if state.value == "end" else str(state.value)


def _spoken(state: Enum) -> str:
    """A state's name as people write it."""
    return str(state.value).replace("_", " ")


def main(argv: Sequence[str]) -> int:
    """Draws the diagrams of the named pages anew."""
    for name in argv:
        path = Path(name)
        path.write_text(refresh(path.name, path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
