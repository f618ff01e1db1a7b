"""The tables of `limits-and-promises.md`, made from the code: every limit, and the tree of errors.

Owns how they look. What they say is in `shoal.limits` and `shoal.errors`.

    python docs/tables.py      makes the tables of the page anew
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shoal import errors, limits
from shoal.channels.diagrams import replace_blocks
from shoal.limits import DEFAULT_LIMITS, KIB, MIB

PAGE: Final = Path(__file__).parent / "limits-and-promises.md"

_UNITS: Final = ("bytes", "messages", "s")
_SECTION: Final = re.compile(r"^\s*# -- (.+?) -+$")


def limits_table() -> str:
    """A row for each limit: its name, its default, its unit and what happens at it, by section."""
    source = inspect.getsource(limits)
    sections = [
        (number, match[1]) for number, line in enumerate(source.splitlines(), 1) if (match := _SECTION.match(line))
    ]
    lines: list[str] = []
    for name, line, text in _fields(source):
        while sections and sections[0][0] < line:
            title = sections.pop(0)[1]
            lines += ["", f"**{title}**", "", "| limit | default | unit | what it is, and what happens at it |"]
            lines.append("| --- | --- | --- | --- |")
        default = getattr(DEFAULT_LIMITS, name)
        lines.append(f"| `{name}` | {_amount(name, default)} | {_unit(name)} | {text} |")
    return "\n".join(lines).strip()


def _fields(source: str) -> Iterator[tuple[str, int, str]]:
    """Name, line and description of each field of `Limits`."""
    record = next(
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == limits.Limits.__name__
    )
    for field, said in zip(record.body, record.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        assert isinstance(said, ast.Expr), field.target.id
        assert isinstance(said.value, ast.Constant), field.target.id
        yield field.target.id, field.lineno, " ".join(str(said.value.value).split())


def _unit(name: str) -> str:
    """The unit that stands at the end of a name, before `max` or `min`."""
    words = [word for word in name.split("_per_")[0].split("_") if word not in ("max", "min")]
    if words[-1] in _UNITS:
        return words[-1]
    return "ratio" if words[-1] == "drift" else words[-1]


def _amount(name: str, value: float) -> str:
    """A default as people write it."""
    if "bytes" in name:
        for size, word in ((MIB, "MiB"), (KIB, "KiB")):
            if value >= size and value % size == 0:
                return f"{value // size:g} {word}"
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else f"{value:g}"


def error_tree() -> str:
    """The tree at the top of `shoal.errors`."""
    lines = inspect.getdoc(errors)
    assert lines is not None
    tree = [line for line in lines.splitlines() if re.match(r"\s*(ShoalError$|[├└│])", line)]
    indent = min(len(line) - len(line.lstrip()) for line in tree)
    return "\n".join(["```text", *(line[indent:] for line in tree), "```"])


def refresh(page: str) -> str:
    """The page with its tables made anew."""
    return replace_blocks(page, "made", {"limits": limits_table(), "errors": error_tree()})


if __name__ == "__main__":
    PAGE.write_text(refresh(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
