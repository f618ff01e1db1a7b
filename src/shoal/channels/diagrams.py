"""The state diagrams of the documentation, drawn from the tables of `states.py`.

Owns the drawing and the place of each drawing in a page. Knows nothing of what the states mean.

    python -m shoal.channels.diagrams docs/protocol-channels.md     draws all diagrams of the page anew

In a page a drawing stands between two marks, `<!-- states: link -->` and `<!-- end: link -->`. What stands
between them is replaced; everything else is left as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from shoal.channels import states
from shoal.channels.states import State, Table

DIAGRAMS: Final = ("link", "site", "lane", "agent")
"""The names of the drawings, in the order of the page."""


def render(table: Table[State]) -> str:
    """A table as a Mermaid state diagram.

    The first state of the enumeration is where a machine begins; a state that nothing leads out of is where
    it ends.
    """
    first = next(iter(table))[0]
    kind = type(first)
    events: dict[tuple[State, State], list[str]] = {}
    for (before, event), after in table.items():
        events.setdefault((before, after), []).append(event)
    leaving = {before for before, _ in table}
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{_spoken(state)}" as {state.value}' for state in kind if _spoken(state) != state.value]
    lines.append(f"    [*] --> {next(iter(kind)).value}")
    lines += [f"    {before.value} --> {after.value}: {', '.join(names)}" for (before, after), names in events.items()]
    lines += [f"    {state.value} --> [*]" for state in kind if state not in leaving]
    return "\n".join(lines)


def drawings() -> dict[str, str]:
    """All drawings by name, each as a fenced block of Markdown."""
    rendered = (render(states.LINK), render(states.SITE), render(states.LANE), render(states.AGENT))
    return {name: f"```mermaid\n{text}\n```" for name, text in zip(DIAGRAMS, rendered, strict=True)}


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


def refresh(page: str) -> str:
    """The page with all diagrams drawn anew."""
    return replace_blocks(page, "states", drawings())


def _spoken(state: State) -> str:
    """A state's name as people write it."""
    return str(state.value).replace("_", " ")


def main(argv: Sequence[str]) -> int:
    """Draws the diagrams of the named pages anew."""
    for name in argv:
        path = Path(name)
        path.write_text(refresh(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
