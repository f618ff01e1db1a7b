"""Generates the tables of `limits-and-promises.md`: the limits and the tree of errors.

Owns their format. The content comes from `shoal.limits` and `shoal.errors`.

    python docs/tables.py      writes the tables into the page
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


def limits_table(*, public: bool) -> str:
    """Rows by section with the name, default, unit and description of each limit, either public or internal ones."""
    source = inspect.getsource(limits)
    sections = [
        (number, match[1]) for number, line in enumerate(source.splitlines(), 1) if (match := _SECTION.match(line))
    ]
    lines: list[str] = []
    last = ""
    for name, line, text in _fields(source):
        if (name in limits.PUBLIC) != public:
            continue
        title = next(title for number, title in reversed(sections) if number < line)
        if title != last:
            lines += ["", f"**{title}**", "", "| limit | default | unit | meaning, and behaviour at the limit |"]
            lines.append("| --- | --- | --- | --- |")
            last = title
        default = getattr(DEFAULT_LIMITS, name)
        lines.append(f"| `{name}` | {_amount(name, default)} | {_unit(name)} | {text} |")
    return "\n".join(lines).strip()


def _fields(source: str) -> Iterator[tuple[str, int, str]]:
    """Yield the name, line and description of each field of `Limits`."""
    record = next(
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == limits.Limits.__name__
    )
    for field, description in zip(record.body, record.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        assert isinstance(description, ast.Expr), field.target.id
        assert isinstance(description.value, ast.Constant), field.target.id
        yield field.target.id, field.lineno, " ".join(str(description.value.value).split())


def _unit(name: str) -> str:
    """Return the unit at the end of a name, before `max` or `min`."""
    words = [word for word in name.split("_per_")[0].split("_") if word not in ("max", "min")]
    if words[-1] in _UNITS:
        return words[-1]
    return "ratio" if words[-1] == "drift" else words[-1]


def _amount(name: str, value: float) -> str:
    """Format a default for readers."""
    if "bytes" in name:
        for size, word in ((MIB, "MiB"), (KIB, "KiB")):
            if value >= size and value % size == 0:
                return f"{value // size:g} {word}"
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else f"{value:g}"


def error_tree() -> str:
    """Return the tree from the docstring of `shoal.errors`."""
    lines = inspect.getdoc(errors)
    assert lines is not None
    tree = [line for line in lines.splitlines() if re.match(r"\s*(ShoalError$|[├└│])", line)]
    indent = min(len(line) - len(line.lstrip()) for line in tree)
    return "\n".join(["```text", *(line[indent:] for line in tree), "```"])


def refresh(page: str) -> str:
    """Return the page with new tables."""
    blocks = {
        "limits": limits_table(public=True),
        "internal limits": limits_table(public=False),
        "errors": error_tree(),
    }
    return replace_blocks(page, "made", blocks)


if __name__ == "__main__":
    PAGE.write_text(refresh(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
