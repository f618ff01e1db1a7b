"""What-if: replays a policy with its settings over recorded load, and computes what that would have cost.

Owns the grid of cases, one run, and the objective by which runs are compared. A run is a function from a recorded day
and a case to a row of figures; `what_if_job` runs many of them, on Spark or in process.

The objective for a day, in hours of one server (the unit of `server_hour_price`):

    server hours
    + OVERLOAD_HOUR_PRICE    for each hour in which a server was overloaded
    + UNDELIVERED_HOUR_PRICE for each hour in which messages were not delivered
    + MOVE_PRICE             for each channel moved

The prices are the defaults of the policy `shoal`. They are the same for every case, whatever prices its own settings
contain. Response times are shown but do not count: they rise with overload.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from shoal.balance.forecast import Forecast
from shoal.balance.policies import POLICIES, policy
from shoal.balance.policies.pool_size import OVERLOAD_HOUR_PRICE
from shoal.balance.settings import DEFAULT_SETTINGS, BalanceSettings
from shoal.errors import ConfigError
from shoal.flow import FlowSimulator, Models, PoolModel, Series, ServerModel
from shoal.flow.workloads import Recorded

UNDELIVERED_HOUR_PRICE: Final = 10 * OVERLOAD_HOUR_PRICE
MOVE_PRICE: Final = DEFAULT_SETTINGS.move_price
OVERLOAD_RATIO: Final = 1.0
"""Load ratio, or CPU utilisation, above which a server is overloaded."""
LATENCY_MS: Final = 0.0
"""Network latency. Windows do not contain it, so response times are only the part of the servers."""
SEED: Final = 1
"""Seed of the replay: decides how clients spread over the servers of a replicated channel."""

DEFAULT_POLICY: Final = "shoal"

DEFAULT_GRID: Final[tuple[Mapping[str, Any], ...]] = (
    {
        "policy": "shoal",
        "high_ratio": [0.75, 0.80, 0.85, 0.90],
        "safe_ratio": [0.60, 0.65, 0.70, 0.75],
        "horizon_s": [10.0, 20.0, 40.0, 80.0],
    },
    {"policy": "dynamoth", "high_ratio": [0.75, 0.80, 0.85], "grow_ratio": [0.5, 0.6, 0.7]},
    {"policy": ["consistent-hashing", "bounded-load", "slots"]},
)
"""The default grid: thresholds and horizon of our policy, thresholds of the paper's policy, and the baselines."""

_GRID_ADVICE: Final = "write [[grid]], and below it one setting on each line"

RUN_SCHEMA: Final = pa.schema(
    [
        ("case", pa.int32()),  # number in the grid; 0 is the defaults
        ("policy", pa.string()),
        ("settings", pa.string()),  # JSON: what differs from the defaults
        ("day", pa.int32()),
        ("seconds", pa.int32()),  # length of the replay
        ("overload_s", pa.int32()),
        ("undelivered_s", pa.int32()),
        ("server_hours", pa.float64()),
        ("servers_max", pa.int32()),
        ("moves", pa.int64()),
        ("response_ms_mean", pa.float64()),  # part of the servers, over the seconds that delivered everything
        ("response_ms_p99", pa.float64()),
        ("cost", pa.float64()),  # the objective
    ]
)


class WhatIfCase(msgspec.Struct, frozen=True, kw_only=True):
    """A policy and its settings. `settings` contains what differs from the defaults."""

    policy: str = DEFAULT_POLICY
    settings: dict[str, float | int] = {}

    def balance(self) -> BalanceSettings:
        """All settings. ConfigError if they are invalid."""
        made = self.unchecked()
        made.validate()
        return made

    def unchecked(self) -> BalanceSettings:
        """All settings, with the right types but perhaps inconsistent."""
        try:
            return msgspec.convert(self.settings, BalanceSettings)
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"the grid has invalid settings {self.settings}: {error}", do="see [balance] in the settings"
            ) from None


class ReplayPool(msgspec.Struct, frozen=True, kw_only=True):
    """The servers of a replay."""

    capacity_bytes_per_s: float
    servers_first: int
    servers_min: int = 1
    servers_max: int = 8
    start_s: int = 20
    """Time from the request for a server until it joins: a process takes 5 s, a machine more."""

    def models(self) -> Models:
        """The simulator's models of servers and pool."""
        first = min(max(self.servers_first, self.servers_min), self.servers_max)
        return Models(
            server=ServerModel(capacity_bytes_per_s=self.capacity_bytes_per_s),
            pool=PoolModel(
                servers_first=first, servers_min=self.servers_min, servers_max=self.servers_max, start_s=self.start_s
            ),
        )


def read_grid(path: Path | None) -> list[WhatIfCase]:
    """The cases of a grid: the defaults first, then every valid combination of each table.

    A file is TOML with tables `[[grid]]`: `policy` and settings of `[balance]`, each a value or a list of values.
    """
    tables: Sequence[Mapping[str, Any]] = DEFAULT_GRID
    if path is not None:
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))["grid"]
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"cannot read the grid {path}: {error}") from None
        except KeyError:
            raise ConfigError(f"{path} has no grid", do=_GRID_ADVICE) from None
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise ConfigError(f"the grid of {path} is not a list of tables", do=_GRID_ADVICE)
    cases = [WhatIfCase()]
    for table in tables:
        for case in _product(table):
            if case not in cases:
                cases.append(case)
    return cases


def _product(table: Mapping[str, Any]) -> Iterable[WhatIfCase]:
    """The combinations of a table, without those whose thresholds are out of order."""
    values = {name: value if isinstance(value, list) else [value] for name, value in table.items()}
    for name in (name for name, several in values.items() if not several):
        raise ConfigError(f"the grid has no values for {name!r}", do="give it some, or remove the line")
    policies = values.pop("policy", [DEFAULT_POLICY])
    for name in values:
        if name not in BalanceSettings.__struct_fields__:
            raise ConfigError(f"the grid names {name!r}, which is not a setting", do="see [balance] in the settings")
    for chosen, *numbers in itertools.product(policies, *values.values()):
        if chosen not in POLICIES:
            raise ConfigError(f"there is no policy {chosen!r}", do=f"name one of {', '.join(POLICIES)} in the grid")
        given = dict(zip(values, numbers, strict=True))
        changed = {name: value for name, value in given.items() if value != getattr(DEFAULT_SETTINGS, name)}
        case = WhatIfCase(policy=chosen, settings=changed)
        if _is_ordered(case.unchecked()):
            case.balance()
            yield case


def _is_ordered(settings: BalanceSettings) -> bool:
    """Whether the thresholds are in order; not every combination of a grid is."""
    return settings.low_ratio < settings.safe_ratio < settings.high_ratio < settings.fail_ratio


def replay(traffic: pa.Table, case: WhatIfCase, pool: ReplayPool, forecast: Forecast | None = None) -> Series:
    """Replays a table of traffic, second by second. A forecast uses the clock of the recording."""
    load = Recorded(traffic, LATENCY_MS)
    if forecast is not None:
        forecast = Forecast(forecast.at_s - traffic["start_s"][0].as_py(), forecast.bytes_out)
    models = pool.models()
    return FlowSimulator(load, policy(case.policy), case.balance(), models, seed=SEED, forecast=forecast).run()


def run(
    number: int, case: WhatIfCase, day: int, traffic: pa.Table, pool: ReplayPool, forecast: Forecast | None = None
) -> pa.RecordBatch:
    """One run, as a row of figures."""
    series = replay(traffic, case, pool, forecast)
    ratio, used = series.column("ratio_max"), series.column("utilisation_max")
    overload = (ratio > OVERLOAD_RATIO) | (used > OVERLOAD_RATIO)
    undelivered = series.column("undelivered") > 0
    response = series.column("response_ms")
    response = response[np.isfinite(response)]
    row = {
        "case": number,
        "policy": case.policy,
        "settings": msgspec.json.encode(case.settings).decode(),
        "day": day,
        "seconds": len(series),
        "overload_s": int((overload | undelivered).sum()),
        "undelivered_s": int(undelivered.sum()),
        "server_hours": series.server_hours,
        "servers_max": int(series.column("servers").max()),
        "moves": series.moves,
        "response_ms_mean": float(response.mean()) if len(response) else None,
        "response_ms_p99": float(np.percentile(response, 99)) if len(response) else None,
    }
    row["cost"] = cost(row)
    return pa.RecordBatch.from_pylist([row], RUN_SCHEMA)


def cost(row: Mapping[str, Any]) -> float:
    """The objective, from the figures of a run."""
    return float(
        row["server_hours"]
        + OVERLOAD_HOUR_PRICE * row["overload_s"] / 3600
        + UNDELIVERED_HOUR_PRICE * row["undelivered_s"] / 3600
        + MOVE_PRICE * row["moves"]
    )


def summary(runs: pa.Table) -> pa.Table:
    """The cases with their figures over all days, cheapest first; cases of equal cost in the order of the grid."""
    sums = ("seconds", "overload_s", "undelivered_s", "server_hours", "moves", "cost")
    wanted = [*((name, "sum") for name in sums), ("response_ms_mean", "mean"), ("response_ms_p99", "max")]
    grouped = runs.group_by(["case", "policy", "settings"]).aggregate(wanted)
    names = {f"{name}_{how}": name for name, how in wanted}
    renamed = grouped.rename_columns([names.get(name, name) for name in grouped.column_names])
    return renamed.sort_by([("cost", "ascending"), ("case", "ascending")])
