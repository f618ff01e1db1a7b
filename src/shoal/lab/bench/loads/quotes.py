"""Stock quotes: the publications of the PADRES paper, generated or read from its data set.

Owns both. A quote is an event with the paper's eight attributes. The data set has one quote a line in the paper's
syntax and one file for each stock, in a directory or a tar archive. It is read in place and never copied.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import date, timedelta
from itertools import islice, product
from pathlib import Path
from string import ascii_uppercase
from typing import Final, TypeAlias, overload

import numpy as np

from shoal.errors import EventError
from shoal.filters.events import parse_event
from shoal.filters.values import Value, canonical_number
from shoal.lab.bench.contender import BenchError

Quote: TypeAlias = dict[str, Value]
Quotes: TypeAlias = Mapping[str, Sequence[Quote]]
"""By symbol."""

NUMBERS: Final = ("open", "high", "low", "close", "volume")
_LAST_DAY: Final = date(2004, 12, 28)
_PLAIN: Final = re.compile(
    r"\[class,'([^']*)'\],\[symbol,'([^']*)'\],\[open,([\d.]+)\],\[high,([\d.]+)\],\[low,([\d.]+)\],"
    r"\[close,([\d.]+)\],\[volume,(\d+)\],\[date,'([^']*)'\]"
)
"""The usual form of a quote in the data set; other lines are parsed by `shoal.filters`."""


class PriceWalk(Sequence[Quote]):
    """The generated quotes of one stock. Each is made when it is asked for: most loads use a few of them."""

    def __init__(self, symbol: str, rows: Sequence[Sequence[float]], dates: Sequence[str]) -> None:
        self._symbol = symbol
        self._rows = rows
        self._dates = dates

    def __len__(self) -> int:
        return len(self._dates)

    @overload
    def __getitem__(self, day: int) -> Quote: ...
    @overload
    def __getitem__(self, day: slice) -> list[Quote]: ...
    def __getitem__(self, day: int | slice) -> Quote | list[Quote]:
        if isinstance(day, slice):
            return [self[each] for each in range(*day.indices(len(self)))]
        return _quote("STOCK", self._symbol, tuple(row[day] for row in self._rows), self._dates[day])


def generate(symbols: list[str], days: int, rng: np.random.Generator) -> Quotes:
    """Random walks of price and volume over a number of days, one for each symbol."""
    shape = len(symbols), days
    start = np.exp(rng.uniform(np.log(5), np.log(100), (len(symbols), 1)))
    close = np.maximum(start * np.exp(np.cumsum(rng.normal(0, 0.02, shape), axis=1)), 0.5)
    opened = close * np.exp(rng.normal(0, 0.01, shape))
    high = np.maximum(opened, close) * np.exp(np.abs(rng.normal(0, 0.01, shape)))
    low = np.minimum(opened, close) * np.exp(-np.abs(rng.normal(0, 0.01, shape)))
    usual = np.exp(rng.uniform(np.log(1e5), np.log(1e7), (len(symbols), 1)))
    wave = np.clip(np.cumsum(rng.normal(0, 0.05, shape), axis=1), -2, 2)
    volume = 100 * np.rint(usual * np.exp(wave + rng.normal(0, 0.3, shape)) / 100)
    tables = [np.round(values, 2).tolist() for values in (opened, high, low, close, volume)]
    dates = [_spelled(_LAST_DAY - timedelta(days=ago)) for ago in range(days)]
    return {symbol: PriceWalk(symbol, rows, dates) for symbol, *rows in zip(symbols, *tables, strict=True)}


def symbols(count: int, taken: Container[str] = ()) -> list[str]:
    """New symbols that are not in use yet."""
    names = ("".join(letters) for letters in product(ascii_uppercase, repeat=4))
    return list(islice((name for name in names if name not in taken), count))


def read(path: Path) -> Quotes:
    """The real quotes in a directory or a tar archive."""
    quotes: dict[str, list[Quote]] = {}
    for name, text in _texts(path):
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            quote = _parsed(line, f"{name}, line {number}")
            quotes.setdefault(str(quote["symbol"]), []).append(quote)
    if not quotes:
        raise BenchError(f"there are no quotes in {path}", do="give the archive of the data set, or a directory of it")
    return quotes


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    """Name and text of each file, in the order of their names."""
    try:
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                if file.is_file():
                    yield str(file), file.read_text()
            return
        with tarfile.open(path) as archive:
            for member in sorted(archive.getmembers(), key=lambda member: member.name):
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None:
                    yield member.name, content.read().decode()
    except (OSError, tarfile.TarError, UnicodeDecodeError) as error:
        advice = "give the archive of the data set, or a directory of it"
        raise BenchError(f"cannot read quotes from {path} ({error})", do=advice) from error


def _parsed(line: str, place: str) -> Quote:
    if plain := _PLAIN.fullmatch(line.strip()):
        kind, symbol, *numbers, day = plain.groups()
        return _quote(kind, symbol, tuple(map(float, numbers)), day)
    try:
        quote = parse_event(line)
    except EventError as error:
        raise BenchError(f"{place}: not a quote: {error}") from error
    if missing := {"class", "symbol", *NUMBERS} - quote.keys():
        raise BenchError(f"{place}: a quote without {', '.join(sorted(missing))}")
    return quote


def _quote(kind: str, symbol: str, numbers: tuple[float, ...], day: str) -> Quote:
    named = {name: canonical_number(number) for name, number in zip(NUMBERS, numbers, strict=True)}
    return {"class": kind, "symbol": symbol, **named, "date": day}


def _spelled(day: date) -> str:
    """A date as in the data set: 7-Sep-84."""
    return f"{day.day}-{day:%b-%y}"
