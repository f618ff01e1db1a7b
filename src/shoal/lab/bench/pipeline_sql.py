"""SQL in a session of `shoal pipeline`, compared with the same SQL in a plain `SparkSession`.

Owns the query, the two sessions and their figures. Each session is in a process of its own, because a process has only
one; both live for the whole measurement, and run the query in turn. The first rounds warm up Java's compiler and do not
count. `python -m shoal.lab.bench.pipeline_sql` is such a process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from shoal.lab.harness import LoadProcess, Parent, Ready, run_worker
from shoal.pipeline.session import SessionOptions, settings_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS: Final = "sql"
PLAIN: Final = "sql, plain session"
WORDS: Final = {
    OURS: "an aggregation and a join by SQL, in a session made as `shoal pipeline` does",
    PLAIN: "the same in SparkSession.builder.master('local[2]').getOrCreate()",
}
WARM_ROUNDS: Final = 2
START_S_MAX: Final = 120.0
QUERY_S_MAX: Final = 300.0


class OpenSession(msgspec.Struct, tag=True, frozen=True):
    """The first order, answered with `Ready`."""

    kind: Literal["ours", "plain"]


class RunQuery(msgspec.Struct, tag=True, frozen=True):
    """Run the query over this many rows; answered with `QueryDone`."""

    rows: int


class QueryDone(msgspec.Struct, tag=True, frozen=True):
    """How long the query took, and its result."""

    seconds: float
    result: int


ORDERS: Final = msgspec.json.Decoder(OpenSession | RunQuery)
REPORTS: Final = msgspec.json.Decoder(Ready | QueryDone)


class SqlOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the measurement."""

    rows: int = 4_000_000
    rounds: int = 3
    note: Callable[[str], None] = lambda _: None


def measure(options: SqlOptions) -> list[dict[str, Any]]:
    """The rows of both sessions."""
    return asyncio.run(_measure(options))


async def _measure(options: SqlOptions) -> list[dict[str, Any]]:
    options.note("starting two sessions")
    async with AsyncExitStack() as stack:
        sessions: dict[str, LoadProcess] = {}
        for name, kind in ((OURS, "ours"), (PLAIN, "plain")):
            process = LoadProcess(f"{name} session", "shoal.lab.bench.pipeline_sql", REPORTS)
            sessions[name] = await stack.enter_async_context(process)
            await process.ask(OpenSession(kind), Ready, START_S_MAX)  # type: ignore[arg-type]
        seconds: dict[str, list[float]] = {name: [] for name in sessions}
        for number in range(options.rounds + WARM_ROUNDS):
            for name in list(sessions)[:: 1 if number % 2 == 0 else -1]:
                options.note(f"sql, round {number + 1 - WARM_ROUNDS} of {options.rounds}: {name}")
                done = await sessions[name].ask(RunQuery(options.rows), QueryDone, QUERY_S_MAX)
                if number >= WARM_ROUNDS:
                    seconds[name].append(done.seconds)
    return [_row(name, found, options.rows) for name, found in seconds.items()]


def _row(name: str, seconds: list[float], rows: int) -> dict[str, Any]:
    return {
        "contender": name,
        "rows_per_s": round(rows / median(seconds)),
        "seconds": round(median(seconds), 3),
        "seconds_min": round(min(seconds), 3),
        "seconds_max": round(max(seconds), 3),
        "rounds": len(seconds),
    }


# The process of one session


async def work(parent: Parent[OpenSession | RunQuery]) -> None:
    """Opens a session and runs queries in it."""
    order = await parent.order()
    if not isinstance(order, OpenSession):
        return
    spark = _open(order.kind)
    parent.tell(Ready())
    while isinstance(order := await parent.order(), RunQuery):
        parent.tell(_run(spark, order.rows))
    spark.stop()


def _open(kind: str) -> SparkSession:
    from pyspark.sql import SparkSession

    plain = SparkSession.builder.master("local[2]")
    return (plain.config(map={**settings_of(SessionOptions())}) if kind == "ours" else plain).getOrCreate()


def _run(spark: SparkSession, rows: int) -> QueryDone:
    began = time.perf_counter()
    spark.range(rows).selectExpr("id", "id % 1000 as unit", "hash(id) % 100 as cost").createOrReplaceTempView("loads")
    (row,) = spark.sql(
        "select sum(most * total) as result from (select unit, max(cost) as most from loads group by unit) "
        "join (select unit, sum(cost) as total from loads where cost > 10 group by unit) using (unit)"
    ).collect()
    return QueryDone(time.perf_counter() - began, int(row["result"]))


if __name__ == "__main__":
    run_worker(ORDERS, work)
