"""When which channel is requested to move, and where to: drawn from the seed of a round.

Owns the pattern of the moves. They come in waves with quiet times in between, so that the same round measures latency
in quiet times and during moves. Within a wave several moves begin at once, and some channels move again before their
last move has ended. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import Final

import msgspec

from shoal.plan.placement import Mode

WAVE_S: Final = 10.0
"""Length of a wave with the quiet time after it, if the round is long enough."""
REQUEST_SHARE: Final = 0.6
"""Moves are requested in this part of a wave; in the rest they end, and then it is quiet."""
WARM_S_MAX: Final = 5.0
"""Longest quiet time before the first wave."""
TAIL_S_MAX: Final = 8.0
"""Longest time between the last request and the end of the load."""
AT_ONCE: Final = (1, 1, 2, 3, 6)
AT_ONCE_MAX: Final = max(AT_ONCE)
AGAIN_SHARE: Final = 0.25
"""Share of channels that are requested to move again soon."""
AGAIN_S_MAX: Final = 0.6
WIDTHS: Final = (2, 3)


class PlannedMove(msgspec.Struct, frozen=True):
    """The move of a channel, at a time after the start of the load. Its servers are chosen then."""

    at_s: float
    channel: str
    mode: Mode
    eager: bool


def draw_moves(channels: Sequence[str], moves: int, seconds: float, rng: Random) -> list[PlannedMove]:
    """A number of moves in waves, in the order of their times."""
    warm_s, tail_s = min(WARM_S_MAX, seconds / 6), min(TAIL_S_MAX, seconds / 4)
    span_s = seconds - warm_s - tail_s
    waves = max(1, round(span_s / WAVE_S))
    wave_s = span_s / waves
    found: list[PlannedMove] = []
    for wave in range(waves):
        count = moves * (wave + 1) // waves - moves * wave // waves
        begin_s = warm_s + wave * wave_s
        found += _wave(channels, count, begin_s, begin_s + REQUEST_SHARE * wave_s, rng)
    return sorted(found, key=lambda move: move.at_s)


def draw_idle(channels: Sequence[str], seconds: float, rng: Random) -> list[PlannedMove]:
    """A lazy move of each channel, in the middle of a round."""
    return sorted(
        (PlannedMove(rng.uniform(0.4, 0.6) * seconds, channel, rng.choice(list(Mode)), False) for channel in channels),
        key=lambda move: move.at_s,
    )


def draw_burst(channels: Sequence[str], seconds: float, rng: Random) -> list[PlannedMove]:
    """Every channel at once, after some quiet time."""
    at_s = min(WARM_S_MAX, seconds / 6)
    return [_move(at_s, channel, rng) for channel in channels]


def _wave(channels: Sequence[str], count: int, begin_s: float, end_s: float, rng: Random) -> list[PlannedMove]:
    """The moves of a wave, one or several at once. Channels that have not moved for longest come first, and some move
    again soon."""
    again_s = min(AGAIN_S_MAX, (end_s - begin_s) / 4)
    clumps = _clumps(count, min(AT_ONCE_MAX, len(channels)), rng)
    rested = rng.sample(channels, len(channels))
    found: list[PlannedMove] = []
    for at_s, agains in sorted((rng.uniform(begin_s, end_s - again_s), agains) for agains in clumps):
        for channel in rng.sample(rested[: max(len(agains), len(rested) // 2)], len(agains)):
            rested.remove(channel)
            rested.append(channel)
            found.append(_move(at_s, channel, rng))
            if agains.pop():
                found.append(_move(at_s + rng.uniform(0.02, 1.0) * again_s, channel, rng))
    return found


def _clumps(count: int, at_once_max: int, rng: Random) -> list[list[bool]]:
    """Groups of moves that begin together: for each move, whether its channel moves again, which counts too."""
    clumps: list[list[bool]] = []
    while count:
        clump: list[bool] = []
        for _ in range(min(rng.choice(AT_ONCE), at_once_max)):
            if count:
                clump.append(rng.random() < AGAIN_SHARE and count > 1)
                count -= 1 + clump[-1]
        clumps.append(clump)
    return clumps


def _move(at_s: float, channel: str, rng: Random) -> PlannedMove:
    return PlannedMove(at_s, channel, rng.choice(list(Mode)), rng.random() < 0.5)


def choose_servers(
    mode: Mode, members: Collection[str], before: tuple[Mode, frozenset[str]] | None, rng: Random
) -> tuple[str, ...]:
    """Servers for a placement of this mode that differs from the one before; () if there are none."""
    ordered = sorted(members)
    if not ordered:
        return ()
    for _ in range(10):
        width = 1 if mode is Mode.SINGLE else min(rng.choice(WIDTHS), len(ordered))
        chosen = tuple(rng.sample(ordered, width))
        if before != (mode, frozenset(chosen)):
            return chosen
    return ()
