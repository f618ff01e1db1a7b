"""A second kind of unit, for tests only: lamps on shelves, which use up watts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shoal.load.kinds import Column, Cost, Folding, HostColumn, HostKind, Kinds, Type, UnitKind
from shoal.load.record import Record, RecordId
from shoal.load.table import UnitTable
from shoal.load_kinds import KINDS

LAMP: Final = UnitKind(
    "lamp",
    columns=(
        Column("lit_s", Type.FLOAT, Folding.RATE),
        Column("flashes", folding=Folding.RATE),
        Column("brightest", folding=Folding.PEAK),
        Column("hottest", Type.FLOAT, Folding.PEAK),
        Column("watchers", Type.IDS),
        Column("screws"),
    ),
    costs=(Cost("watts", (("lit_s", 60.0), ("flashes", 2.0))),),
)
SHELF: Final = HostKind(
    "shelf",
    columns=(
        HostColumn("watts", nullable=True, figure="watts"),
        HostColumn("fuse_watts", figure="watts_max", folding=Folding.LAST),
        HostColumn("plugs", Type.INT, figure="plugs", folding=Folding.PEAK),
        HostColumn("dust_g", Type.FLOAT),
    ),
)
BOTH: Final = Kinds(units=(*KINDS.units, LAMP), hosts=(*KINDS.hosts, SHELF))


def shelf_record(
    shelf: str,
    second: int,
    lamps: Mapping[bytes, Mapping[str, Any]],
    *,
    watts: float | None = 100.0,
    site: str = "attic",
    sequence: int | None = None,
) -> Record:
    """One second of one shelf."""
    host = {"interval_s": None if watts is None else 1.0, "uncounted": 0, "watts": watts}
    return Record(
        RecordId(shelf, "a", second, second if sequence is None else sequence),
        SHELF,
        {**host, "fuse_watts": 500.0, "plugs": 3, "dust_g": 0.5},
        {"lamp": UnitTable.of_rows(LAMP, lamps)},
        site,
    )
