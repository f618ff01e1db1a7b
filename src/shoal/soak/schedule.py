"""When which channel is asked to move, and where to: drawn by the seed of a round.

Owns the pattern of the moves. They come in waves with quiet in between, so that latency in quiet time and during
moves is measured in the same run; within a wave several come at once, and some come before the one before has
ended. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import Final

import msgspec

from shoal.plan.placement import Mode

WAVE_S: Final = 10.0
"""How long a wave is, with the quiet after it, when there is room."""
ASKING_SHARE: Final = 0.6
"""The part of a wave in which moves are asked for; in the rest they end, and then it is quiet."""
WARM_S_MAX: Final = 5.0
"""How long it is quiet before the first wave, at the most."""
TAIL_S_MAX: Final = 8.0
"""How long before the end of the load moves are over, at the most."""
AT_ONCE: Final = (1, 1, 2, 3, 6)
AT_ONCE_MAX: Final = max(AT_ONCE)
AGAIN_SHARE: Final = 0.25
"""How often a channel is asked to move again at once."""
AGAIN_S_MAX: Final = 0.6
WIDTHS: Final = (2, 3)


class Wish(msgspec.Struct, frozen=True):
    """A channel is to move at a time after the beginning of the load. Which servers is decided then."""

    at_s: float
    channel: str
    mode: Mode
    eager: bool


def draw_wishes(channels: Sequence[str], moves: int, seconds: float, rng: Random) -> list[Wish]:
    """So many moves in waves, in the order of their times."""
    warm_s, tail_s = min(WARM_S_MAX, seconds / 6), min(TAIL_S_MAX, seconds / 4)
    span_s = seconds - warm_s - tail_s
    waves = max(1, round(span_s / WAVE_S))
    wave_s = span_s / waves
    found: list[Wish] = []
    for wave in range(waves):
        count = moves * (wave + 1) // waves - moves * wave // waves
        begin_s = warm_s + wave * wave_s
        found += _wave(channels, count, begin_s, begin_s + ASKING_SHARE * wave_s, rng)
    return sorted(found, key=lambda wish: wish.at_s)


def draw_idle(channels: Sequence[str], seconds: float, rng: Random) -> list[Wish]:
    """A lazy move of each of these in the middle of a run."""
    return sorted(
        (Wish(rng.uniform(0.4, 0.6) * seconds, channel, rng.choice(list(Mode)), False) for channel in channels),
        key=lambda wish: wish.at_s,
    )


def draw_burst(channels: Sequence[str], seconds: float, rng: Random) -> list[Wish]:
    """Every channel at once, when it was quiet for a while."""
    at_s = min(WARM_S_MAX, seconds / 6)
    return [_wish(at_s, channel, rng) for channel in channels]


def _wave(channels: Sequence[str], count: int, begin_s: float, end_s: float, rng: Random) -> list[Wish]:
    """Channels that have not moved for longest move first, one or several at once; some of them move again soon."""
    again_s = min(AGAIN_S_MAX, (end_s - begin_s) / 4)
    clumps = _clumps(count, min(AT_ONCE_MAX, len(channels)), rng)
    rested = rng.sample(channels, len(channels))
    found: list[Wish] = []
    for at_s, agains in sorted((rng.uniform(begin_s, end_s - again_s), agains) for agains in clumps):
        for channel in rng.sample(rested[: max(len(agains), len(rested) // 2)], len(agains)):
            rested.remove(channel)
            rested.append(channel)
            found.append(_wish(at_s, channel, rng))
            if agains.pop():
                found.append(_wish(at_s + rng.uniform(0.02, 1.0) * again_s, channel, rng))
    return found


def _clumps(count: int, at_once_max: int, rng: Random) -> list[list[bool]]:
    """Moves that begin together: for each whether its channel moves again, which counts, too."""
    clumps: list[list[bool]] = []
    while count:
        clump: list[bool] = []
        for _ in range(min(rng.choice(AT_ONCE), at_once_max)):
            if count:
                clump.append(rng.random() < AGAIN_SHARE and count > 1)
                count -= 1 + clump[-1]
        clumps.append(clump)
    return clumps


def _wish(at_s: float, channel: str, rng: Random) -> Wish:
    return Wish(at_s, channel, rng.choice(list(Mode)), rng.random() < 0.5)


def choose_servers(
    mode: Mode, members: Collection[str], before: tuple[Mode, frozenset[str]] | None, rng: Random
) -> tuple[str, ...]:
    """Servers for a placement of this kind, other than the one before if there is a choice; () if there is none."""
    ordered = sorted(members)
    if not ordered:
        return ()
    for _ in range(10):
        width = 1 if mode is Mode.SINGLE else min(rng.choice(WIDTHS), len(ordered))
        chosen = tuple(rng.sample(ordered, width))
        if before != (mode, frozenset(chosen)):
            return chosen
    return ()
