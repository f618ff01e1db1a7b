"""A city that measures its air: stations emit what they measure, and residents are told what concerns them.

    python examples/air_quality.py             # a live table, on the cluster of `shoal up`
    python examples/air_quality.py --headless  # a summary after a few seconds

A station knows nothing about residents: it emits the district, the pollutant and the value, without a channel. A
resident knows nothing about stations: it has filters, such as "ozone in my district above 120". Shoal's engine brings
them together. The city is the example of the paper on E-SilboPS; its data here are made up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import shoal

if TYPE_CHECKING:
    from rich.table import Table

DISTRICTS = ("Centre", "Harbour", "Hills", "North", "South")
ALERT = {"NO2": 200.0, "O3": 120.0, "PM10": 50.0, "PM2.5": 25.0, "SO2": 125.0}
"""Pollutants, and the value from which on people should know, in micrograms per cubic metre."""


class Resident:
    """Lives in a district; asthmatics want to know earlier, joggers want good news too."""

    def __init__(self, number: int, random: Random) -> None:
        self.name = f"resident {number}"
        self.district = random.choice(DISTRICTS)
        self.alerts = 0
        self.latest = ""
        self.filters = {
            f"{pollutant} is high": f"district = '{self.district}' and pollutant = '{pollutant}' and value >= {limit}"
            for pollutant, limit in ALERT.items()
        }
        if number % 3 == 0:
            self.filters["asthma"] = f"district = '{self.district}' and pollutant in ('PM2.5', 'O3') and value >= 20"
        if number % 4 == 0:
            self.filters["jogging"] = f"district = '{self.district}' and pollutant = 'O3' and value < 20"

    async def live(self, url: str | None) -> None:
        """Reads what concerns this resident: one copy of an event, with the names of the filters that it matches."""
        async with shoal.connect(url) as bus, bus.match() as events:
            await events.add_many(self.filters)
            async for event in events:
                if isinstance(event, shoal.Gap):
                    self.latest = f"something may be missing: {event.reason}"
                    continue
                air = dict(event.attributes or {})
                self.alerts += 1
                self.latest = f"{air['pollutant']} {air['value']} at {air['station']}: {', '.join(event.matched)}"


class Station:
    """Measures all pollutants at a place. Values wander."""

    def __init__(self, number: int, random: Random) -> None:
        self.name = f"station-{number}"
        self.district = DISTRICTS[number % len(DISTRICTS)]
        self._random = random
        self._values = {pollutant: limit * random.uniform(0.1, 0.9) for pollutant, limit in ALERT.items()}

    def measure(self) -> dict[str, str | float]:
        """The next value of one pollutant."""
        pollutant = self._random.choice(list(ALERT))
        change = self._random.gauss(0.0, 0.15 * ALERT[pollutant])
        value = min(max(self._values[pollutant] + change, 0.0), 2 * ALERT[pollutant])
        self._values[pollutant] = value
        return {
            "station": self.name,
            "district": self.district,
            "pollutant": pollutant,
            "value": round(value, 1),
        }


async def measure(stations: list[Station], url: str | None, rate: float, counts: Counter[str]) -> None:
    """Emits the measurements of all stations, `rate` in a second."""
    async with shoal.connect(url) as bus:
        while True:
            for station in stations:
                await bus.emit(station.measure())
                counts["measured"] += 1
                await asyncio.sleep(1 / rate)


async def run(args: argparse.Namespace) -> dict[str, int]:
    """Runs the city for a while; returns how much was measured, and how many alerts there were."""
    random = Random(args.seed)
    residents = [Resident(number, random) for number in range(args.residents)]
    stations = [Station(number, random) for number in range(args.stations)]
    counts: Counter[str] = Counter()
    tasks = [asyncio.create_task(resident.live(args.url)) for resident in residents]
    tasks.append(asyncio.create_task(measure(stations, args.url, args.rate, counts)))
    showing = asyncio.create_task(show(residents, counts, args))
    try:
        await asyncio.wait([*tasks, showing], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in [*tasks, showing]:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, showing, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
    return {"measured": counts["measured"], "alerts": sum(resident.alerts for resident in residents)}


async def show(residents: list[Resident], counts: Counter[str], args: argparse.Namespace) -> None:
    """Shows a live table until the time is over. The time begins with the first measurement that reached a resident."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        live = None
        if not args.headless:
            from rich.live import Live

            live = stack.enter_context(Live(table(residents, counts), refresh_per_second=8))
        until = None
        while until is None or loop.time() < until:
            await asyncio.sleep(0.1)
            if until is None and any(resident.alerts for resident in residents):
                until = loop.time() + args.seconds
            if live is not None:
                live.update(table(residents, counts))


def table(residents: list[Resident], counts: Counter[str]) -> Table:
    """The residents with the most alerts, and what they heard last."""
    from rich.table import Table

    shown = Table(title=f"{counts['measured']:,} measurements", expand=True)
    for heading in ("resident", "district", "alerts", "latest"):
        shown.add_column(heading)
    for one in sorted(residents, key=lambda each: -each.alerts):
        shown.add_row(one.name, one.district, str(one.alerts), one.latest)
    return shown


def above_zero(kind: type[int] | type[float]) -> Callable[[str], float]:
    """A reader of numbers above zero for `argparse`."""

    def number(text: str) -> float:  # argparse names it in its error
        if not 0 < kind(text) < float("inf"):
            raise ValueError(text)
        return kind(text)

    return number


def main() -> None:
    """Reads the arguments and runs the city."""
    parser = argparse.ArgumentParser(description="a city that measures its air")
    parser.add_argument("--url", help="the cluster (default: that of `shoal up`)")
    parser.add_argument("--seconds", type=above_zero(float), default=20.0)
    parser.add_argument("--stations", type=above_zero(int), default=25)
    parser.add_argument("--residents", type=above_zero(int), default=12)
    parser.add_argument("--rate", type=above_zero(float), default=200.0, help="measurements in a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--headless", action="store_true", help="print a summary instead of a live table")
    args = parser.parse_args()
    try:
        totals = asyncio.run(run(args))
    except shoal.ShoalError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    print(f"{totals['measured']} measurements, {totals['alerts']} alerts")


if __name__ == "__main__":
    main()
