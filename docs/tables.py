"""Generates the tables of `limits-and-promises.md`: the public settings and the tree of errors.

Owns their format. The content comes from the records in `shoal.config.TABLES` and from `shoal.errors`.

    python docs/tables.py      writes the tables into the page
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from shoal import config, errors
from shoal.channels.diagrams import replace_blocks
from shoal.limits import KIB, MIB

PAGE: Final = Path(__file__).parent / "limits-and-promises.md"


def settings_table() -> str:
    """One row for each public setting of the tables of the configuration file: key, default, unit and description."""
    lines = ["| setting | default | unit | meaning, and behaviour at the limit |", "| --- | --- | --- | --- |"]
    for table, record in config.TABLES.items():
        defaults = record()
        lines += [
            f"| `{table}.{name}` | {_amount(name, getattr(defaults, name))} | {_unit(name, getattr(defaults, name))} "
            f"| {text} |"
            for name, text in _fields(record)
            if name in config.PUBLIC[table]
        ]
    return "\n".join(lines)


def _fields(record: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    """Yield the name and description of each field of a record."""
    body = next(node for node in ast.parse(inspect.getsource(record)).body if isinstance(node, ast.ClassDef)).body
    for field, description in itertools.pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        assert isinstance(description, ast.Expr), field.target.id
        assert isinstance(description.value, ast.Constant), field.target.id
        yield field.target.id, " ".join(str(description.value.value).split())


def _unit(name: str, value: object) -> str:
    """Return the unit at the end of a name, before `max` or `min`."""
    if isinstance(value, str | bool):
        return ""
    counted, _, per = name.partition("_per_")
    word = [word for word in counted.split("_") if word not in ("max", "min")][-1]
    return f"{word} per {per}" if per else word


def _amount(name: str, value: object) -> str:
    """Format a default for readers."""
    if isinstance(value, bool):
        return f"`{value}`".lower()
    if isinstance(value, str):
        return f"`{value}`" if value else "none"
    assert isinstance(value, int | float)
    if "bytes" in name:
        for size, word in ((MIB, "MiB"), (KIB, "KiB")):
            if value >= size and value % size == 0:
                return f"{value // size:g} {word}"
    return f"{int(value):,}".replace(",", " ") if value == int(value) else f"{value:g}"


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
        "settings": settings_table(),
        "errors": error_tree(),
    }
    return replace_blocks(page, "made", blocks)


if __name__ == "__main__":
    PAGE.write_text(refresh(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
