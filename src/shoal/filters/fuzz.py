"""Fuzzing of the language: generated texts, and the checks that each of them must pass.

Owns how the texts are made from a seed, and the three promises that are checked. No text makes the parser raise
anything but FilterError (EventError for events); an accepted text parses to the same filter after printing; an error
points into its text. Never touches a clock: the caller says when to stop.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from shoal.errors import EventError, FilterError
from shoal.filters.events import parse_event
from shoal.filters.language import parse

_PIECES: Final = (
    *("a", "b", "class", "str-prefix", "isPresent", "eq", "neq", '"my attr"', '"and"', '""', "a.b", "x-1"),
    *("and", "or", "not", "true", "false", "NOT", "Or", "in", "is", "exists", "absent", "prefix", "suffix", "contains"),
    *("number", "string", "boolean", "=", "==", "!=", "<>", "<", "<=", ">", ">=", "(", ")", "[", "]", ",", "*"),
    *("0", "-1", "1.5", "1e3", "1_000", "9007199254740993", "18446744073709551616", "1e999", ".5", "0x1", "1__0"),
    *(
        "'x'",
        "''",
        "'it''s'",
        "\u2018STOCK\u2019",
        "'",
        '"',
        "\u2019",
        "\\",
        "\n",
        "\t",
        "\0",
        "\ud800",
        "\U0001f41f",
        "é",
    ),
)
_STARTS: Final = (
    "class = 'STOCK' and volume > 300000",
    "[class,eq,'STOCK'],[volume,>,300000]",
    "[class,'STOCK'],[volume,10]",
    "not (a = 1 or b prefix 'x') and c in (1, 'x', true) or d is number",
    "a not in (1, 2) and not b contains 'x' or c absent and d exists",
    "[a,isPresent,0],[b,=,*],[c,in,(1,2)],[d,not str-suffix,'x'],[e,absent]",
    "a = 1 and a = 2",
    "a is not 'x' and b is not prefix 'x' or a not in (1, 'x')",
    "[a,is not,'x'],[b,is not str-suffix,'x'],[c,str-postfix,'x'],[d,str-ge,'x']",
    "((((a < 5 or a > 7) and (b < 5 or b > 7)) or not (c = 1 and d = 1)))",
)
_PIECES_MAX: Final = 24
_FAILURES_MAX: Final = 20


class FuzzReport(msgspec.Struct):
    """The result of a run. It succeeded if there are no failures."""

    seed: int
    texts: int = 0
    accepted: int = 0
    refused: int = 0
    events: int = 0
    failures: list[str] = []
    """The first few texts that broke a promise, each with what happened."""


def fuzz(seed: int, go_on: Callable[[], bool]) -> FuzzReport:
    """Tries texts while `go_on()` returns True. The same seed gives the same texts."""
    report = FuzzReport(seed)
    for text in texts(seed):
        if len(report.failures) >= _FAILURES_MAX or not go_on():
            break
        report.texts += 1
        try:
            _try_filter(text, report)
            _try_event(text, report)
        except Exception as error:  # any other exception is a failure
            report.failures.append(f"{text!r}: {type(error).__name__}: {error}")
    return report


def texts(seed: int) -> Iterator[str]:
    """Endless texts: pieces of the language in random order, and valid filters with a few edits."""
    chance = random.Random(seed)
    while True:
        if chance.random() < 0.5:
            count = chance.randrange(_PIECES_MAX)
            yield chance.choice(("", " ")).join(chance.choices(_PIECES, k=count))
        else:
            yield _edited(chance.choice(_STARTS), chance)


def _edited(text: str, chance: random.Random) -> str:
    for _ in range(chance.randrange(4)):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.randrange(4))
        text = text[:start] + chance.choice(("", text[:end], *_PIECES)) + text[end:]
    return text


def _try_filter(text: str, report: FuzzReport) -> None:
    try:
        made = parse(text)
    except FilterError as error:
        report.refused += 1
        if not 0 <= (error.position or 0) <= len(text) or not str(error):
            report.failures.append(f"{text!r}: the error does not point into the text")
        return
    report.accepted += 1
    spellings = [str(made), made.paper()] if len(made.conjunctions) == 1 else [str(made)]
    for spelling in spellings:
        if parse(spelling) != made:
            report.failures.append(f"{text!r}: printed as {spelling!r}, which is another filter")


def _try_event(text: str, report: FuzzReport) -> None:
    try:
        parse_event(text)
    except EventError:
        return
    report.events += 1
