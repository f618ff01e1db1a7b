"""Counts that are added up over rounds and processes.

Owns the addition.
"""

from __future__ import annotations

from typing import Self

import msgspec


class Totals(msgspec.Struct):
    """A record whose fields are all counts."""

    def add(self, other: Self) -> None:
        """Adds the counts of another record to these."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
