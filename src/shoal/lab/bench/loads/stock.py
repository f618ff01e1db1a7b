"""`stock`: the subscriptions of the PADRES paper (section 6.2), from its six templates, on quotes.

Owns the templates, their probabilities, and the share of subscribers without matches. In the paper 25 to 50 % of the
subscribers "sink zero traffic": there are more known stocks than publishers, and a subscription to a stock without a
publisher never matches. The same here: symbols are drawn from all known stocks, and enough of these have no publisher
that `ZERO_TRAFFIC` of all subscribers request one of them, as in the paper's simulator. Subscriptions with thresholds
that no quote passes come on top.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from shoal.filters.conjunctions import Conjunction
from shoal.filters.constraints import Constraint
from shoal.filters.filter import Filter
from shoal.filters.ranges import Numbers, OneOf
from shoal.filters.values import Number, pred, succ
from shoal.lab.bench.loads.quotes import Quote, Quotes, generate, read, symbols

SYMBOLS: Final = 500
"""Stocks with a publisher, if quotes are generated."""
DAYS: Final = 500
"""Quotes of each of them; together about as many as in the real data set."""
ZERO_TRAFFIC: Final = 0.25

TEMPLATES: Final[tuple[tuple[float, bool, str | None], ...]] = (
    (0.20, True, "high"),
    (0.20, True, "low"),
    (0.20, True, "volume"),
    (0.34, True, None),
    (0.05, False, "volume"),
    (0.01, False, None),
)
"""Probability, whether the symbol is given, and the attribute with a threshold: `low` below it, others above it."""
_WITH_SYMBOL: Final = sum(share for share, symbol, _ in TEMPLATES if symbol)

_Pair = tuple[str, Constraint]


def words(quotes: Path | None) -> str:
    """Description of the load."""
    source = f"generated quotes of {SYMBOLS} stocks" if quotes is None else f"the quotes in {quotes}"
    return (
        f"the six subscription templates of the PADRES paper on {source}; thresholds are values of the stock's own "
        f"quotes; {ZERO_TRAFFIC:.0%} of the subscribers ask for a stock without a publisher"
    )


def make(filters: int, events: int, seed: int, quotes: Path | None = None) -> tuple[list[Filter], list[Quote]]:
    """Filters, and quotes in random order."""
    published = publications(seed, quotes)
    sets = list(published.values())
    ends = np.cumsum([len(of_symbol) for of_symbol in sets])
    order = np.random.default_rng([seed, 2]).permutation(ends[-1])[:events]
    stocks = np.searchsorted(ends, order, side="right").tolist()
    from_end = (order - ends[stocks]).tolist()
    return draw(filters, published, seed), [sets[at][place] for at, place in zip(stocks, from_end, strict=True)]


def publications(seed: int, quotes: Path | None) -> Quotes:
    """All publications: generated, or the real quotes."""
    if quotes is not None:
        return read(quotes)
    return generate(symbols(SYMBOLS), DAYS, np.random.default_rng([seed, 0]))


def draw(count: int, published: Quotes, seed: int) -> list[Filter]:
    """Subscriptions from the templates, for these publications."""
    silent = symbols(round(len(published) * ZERO_TRAFFIC / (_WITH_SYMBOL - ZERO_TRAFFIC)), published)
    known = {**published, **generate(silent, DAYS, np.random.default_rng([seed, 1]))}
    names, sets = list(known), list(known.values())
    rng = np.random.default_rng([seed, 3])
    chosen = rng.choice(len(TEMPLATES), count, p=[share for share, _, _ in TEMPLATES]).tolist()
    stocks = rng.integers(len(known), size=count).tolist()
    places = rng.random(count).tolist()
    stock_class: _Pair = ("class", OneOf(("STOCK",)))
    of_symbol: list[_Pair] = [("symbol", OneOf((name,))) for name in names]
    threshold = _thresholds()
    filters = []
    for template, stock, place in zip(chosen, stocks, places, strict=True):
        _, with_symbol, attribute = TEMPLATES[template]
        pairs = [stock_class]
        if with_symbol:
            pairs.append(of_symbol[stock])
        if attribute is not None:
            value = sets[stock][int(place * len(sets[stock]))][attribute]
            pairs.insert(2 if attribute > "symbol" else 1, threshold(attribute, value))
        filters.append(Filter((Conjunction(tuple(pairs)),)))
    return filters


def _thresholds() -> Callable[[str, Number], _Pair]:
    """A function that makes predicates with a threshold, each only once."""

    @cache
    def threshold(attribute: str, value: Number) -> _Pair:
        bound = pred(value) if attribute == "low" else succ(value)
        assert bound is not None
        return attribute, Numbers(high=bound) if attribute == "low" else Numbers(low=bound)

    return threshold
