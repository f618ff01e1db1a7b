"""How the tests of scenarios show that a broken rule is noticed.

Which seed notices it may change with the scenario, so several are tried: first those that are known to, then from the
first seed on. A run with all rules on is the control of every rule that the same seed notices in the same variant: it
runs once in a process, and a module of such tests is a group of one worker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Final, Protocol

import pytest

from shoal.lab.sim.scenario import COMMON, Outcome, Variant
from shoal.rules import ALL_RULES, Rules, without

LIVENESS_S_MAX: Final = 60.0
"""When a run ends at the latest: without a rule, many never settle. The control settles within that time."""
SEARCH_SEEDS_MAX = 25
"""How many seeds are tried beyond the known ones."""


_CLEAN: Final[set[tuple[RunSeed, int, str]]] = set()
"""The controls that were clean."""


class RunSeed(Protocol):
    def __call__(
        self, seed: int, rules: Rules = ALL_RULES, trace: bool = False, variant: Variant = COMMON
    ) -> Outcome: ...


def kinds(outcome: Outcome) -> set[str]:
    """The kinds of violations in a run."""
    return {violation.split(":")[0] for violation in outcome.verdict.violations}


def assert_noticed(
    run_seed: RunSeed,
    name: str,
    known: Iterable[int],
    wanted: Collection[str],
    variants: Mapping[str, Variant],
) -> None:
    """Fails unless a seed shows violations of a wanted kind without the rule `name`, and none with it, in the same
    variant of the scenario."""
    variant = {"liveness_s_max": LIVENESS_S_MAX, **variants.get(name, COMMON)}
    for seed in chain(known, range(SEARCH_SEEDS_MAX)):
        if kinds(run_seed(seed, without(name), variant=variant)) & {*wanted}:
            control = run_seed, seed, repr(variant)
            if control not in _CLEAN:
                assert run_seed(seed, variant=variant).verdict.violations == [], "with the rule on, the seed is clean"
                _CLEAN.add(control)
            return
    pytest.fail(f"no seed noticed that the rule {name} is off")
