"""Protocol rules that can be switched off, one at a time, to prove that the checkers notice.

Owns the registry, and the value that tells a participant which rules are on. A rule is declared once, as a constant
beside the code that it switches:

    HEAL: Final = rule("heal", "A hole is requested from its publisher before it is reported.")
    ...
    if HEAL in self._rules:

Production always runs with `ALL_RULES`; `shoal sim PROTOCOL --break NAME` runs without one of them.
"""

from __future__ import annotations

from typing import Final, NewType

Rule = NewType("Rule", str)

_declared: Final[dict[str, str]] = {}


def rule(name: str, text: str) -> Rule:
    """Declare a rule; `text` says what holds while it is on."""
    if name in _declared:
        raise ValueError(f"the rule {name!r} is declared twice")
    _declared[name] = text
    return Rule(name)


def declared() -> dict[str, str]:
    """Return all rules of the modules that have been imported, with their texts."""
    return dict(_declared)


class Rules:
    """The rules that are on: all of them, or all but one."""

    __slots__ = ("_broken",)

    def __init__(self, broken: Rule | None = None) -> None:
        self._broken = broken

    def __contains__(self, one: Rule) -> bool:
        """Return whether a rule is on."""
        return one != self._broken


ALL_RULES: Final = Rules()


def without(name: str) -> Rules:
    """Return all rules but one."""
    if name not in _declared:
        raise ValueError(f"there is no rule {name!r}; the rules are {', '.join(sorted(_declared))}")
    return Rules(Rule(name))
