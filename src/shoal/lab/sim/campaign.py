"""A campaign: many seeds of a scenario, judged together.

Owns the sum over seeds, and the rule that a campaign must exercise every corner, because it proves nothing about rules
that it did not test.
"""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from shoal.lab.sim.scenario import Outcome

CORNERS_SEEDS_MIN: Final = 200
"""With fewer seeds a campaign is a replay or a sample, and corners that it did not exercise do not fail it."""
GAPS_FALSE_MIN: Final = 2
GAPS_FALSE_SHARE: Final = 0.01
"""False gaps that do not fail a campaign: this many, or this share of the seeds."""
VIOLATIONS_SHOWN_MAX: Final = 50
CHUNK_SEEDS: Final = 5
GC_THRESHOLD: Final = 200_000

Progress = Callable[[int, int, int], None]
"""Seeds done, messages so far, violating seeds so far."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol that campaigns can test.

    `run_seed` takes a seed and the name of a rule to break, if any. `corners` maps each corner that a campaign must
    exercise to its counter. `moves` names the counters that count as moves.
    """

    name: str
    run_seed: Callable[[int, str | None], Outcome]
    corners: Mapping[str, str]
    breaks: tuple[str, ...]
    moves: tuple[str, ...]


@dataclass(slots=True)
class Result:
    """The result of a campaign. `failing` are the seeds with violations."""

    protocol: Protocol
    seeds: int = 0
    messages: int = 0
    deliveries: int = 0
    faults: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    gaps_reported: int = 0
    gaps_false: int = 0
    gaps_unprovable: int = 0
    seconds: float = 0.0
    failing: list[int] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    exercised: Counter[str] = field(default_factory=Counter)
    own: Counter[str] = field(default_factory=Counter)
    digests: dict[int, bytes] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Adds one seed."""
        verdict = outcome.verdict
        self.seeds += 1
        self.messages += verdict.messages
        self.deliveries += verdict.deliveries
        self.faults += outcome.faults
        self.lost += verdict.lost
        self.duplicated += verdict.duplicated
        self.reordered += verdict.reordered
        self.gaps_reported += verdict.gaps_reported
        self.gaps_false += len(verdict.gaps_false)
        self.gaps_unprovable += verdict.gaps_unprovable
        self.exercised.update(outcome.exercised)
        self.own.update(verdict.own)
        self.digests[outcome.seed] = outcome.digest
        if verdict.violations:
            self.failing.append(outcome.seed)
            room = VIOLATIONS_SHOWN_MAX - len(self.violations)
            self.violations += [f"seed {outcome.seed}: {text}" for text in verdict.violations[: min(room, 5)]]

    @property
    def corners_missed(self) -> list[str]:
        """Corners that no seed has exercised, if there were enough seeds to expect all of them."""
        if self.seeds < CORNERS_SEEDS_MIN:
            return []
        return [name for name, counter in self.protocol.corners.items() if not self.exercised[counter]]

    @property
    def alarms_often(self) -> bool:
        """Whether there were too many false gaps."""
        return self.gaps_false > max(GAPS_FALSE_MIN, GAPS_FALSE_SHARE * self.seeds)

    @property
    def holds(self) -> bool:
        """Whether there was no violation, few false gaps, and every corner was exercised."""
        return not self.failing and not self.corners_missed and not self.alarms_often

    @property
    def digest(self) -> str:
        """A hash of everything that happened in all seeds. The order in which they ran does not matter."""
        combined = blake2b(digest_size=16)
        for seed, digest in sorted(self.digests.items()):
            combined.update(b"%d:%b" % (seed, digest))
        return combined.hexdigest()

    def facts(self) -> dict[str, Any]:
        """The facts that `shoal sim PROTOCOL --json` prints."""
        self.failing.sort()
        exercised = {name: self.exercised[counter] for name, counter in self.protocol.corners.items()}
        return {
            "protocol": self.protocol.name,
            "seeds": self.seeds,
            "messages": self.messages,
            "deliveries": self.deliveries,
            "moves": sum(self.exercised[counter] for counter in self.protocol.moves),
            "faults": self.faults,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "reordered": self.reordered,
            "gaps_reported": self.gaps_reported,
            "gaps_false": self.gaps_false,
            "gaps_unprovable": self.gaps_unprovable,
            "silent": self.lost,
            "violations": self.violations
            + [f"never exercised: {name}" for name in self.corners_missed]
            + ([f"false gaps: {self.gaps_false} in {self.seeds} seeds"] if self.alarms_often else []),
            "failing_seeds": self.failing,
            "exercised": exercised,
            **self.own,
            "digest": self.digest,
            "seconds": round(self.seconds, 1),
        }


def run_campaign(
    protocol: Protocol,
    seeds: int,
    first: int,
    broken_rule: str | None,
    progress: Progress,
    stop_at_first: bool = False,
    workers: int | None = None,
) -> Result:
    """Runs the seeds in `workers` processes, by default one for each core. With a broken rule it stops at the first
    violating seed."""
    result = Result(protocol)
    began = time.monotonic()
    for outcomes in _chunks(protocol, range(first, first + seeds), broken_rule, workers):
        for outcome in outcomes:
            result.add(outcome)
        progress(result.seeds, result.messages, len(result.failing))
        if stop_at_first and result.failing:
            break
    result.seconds = time.monotonic() - began
    return result


def _chunks(protocol: Protocol, seeds: range, broken_rule: str | None, workers: int | None) -> Iterator[list[Outcome]]:
    chunks = [seeds[start : start + CHUNK_SEEDS] for start in range(0, len(seeds), CHUNK_SEEDS)]
    workers = min(workers or os.cpu_count() or 1, len(chunks))
    if workers <= 1:
        threshold, was_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
        _prepare_worker()
        try:
            yield from (_run_chunk(protocol, chunk, broken_rule) for chunk in chunks)
        finally:
            if not was_frozen:
                gc.unfreeze()
            gc.set_threshold(*threshold)
        return
    with ProcessPoolExecutor(workers, initializer=_prepare_worker) as pool:
        futures = [pool.submit(_run_chunk, protocol, chunk, broken_rule) for chunk in chunks]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _prepare_worker() -> None:
    """Excludes the large heap of the libraries from garbage collection: a seed makes many short-lived objects, and each
    collection would scan that heap again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


def _run_chunk(protocol: Protocol, seeds: range, broken_rule: str | None) -> list[Outcome]:
    outcomes = []
    for seed in seeds:
        outcomes.append(protocol.run_seed(seed, broken_rule))
        gc.collect()  # a finished world is one large cycle
    return outcomes
