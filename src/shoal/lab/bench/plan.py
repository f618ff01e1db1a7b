"""`shoal bench plan`: one decision of every policy about the same million channels.

Owns the contenders, the order of the runs and the figures. In each round every contender decides once, another one
first each time. The results are medians over the rounds. The first decision of each, on a few channels, triggers the
compilation of kernels and is not counted.

`shoal` runs with free moves (any number, at no cost) and with budgets. The others have no limit on moves and decide
once, as they do when a server is overloaded. None may add a server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import msgspec

from shoal.balance.decision import Decision, changed
from shoal.balance.policies import POLICIES, policy
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation
from shoal.lab.bench import plan_load
from shoal.lab.machine import machine

SHOAL: Final = "shoal"
BUDGETS: Final = (100, 1_000, 10_000)
"""Limits on the moves of `shoal`, beside any number."""
REPLICAS_MAX: Final = 128
"""Servers that one channel may have: the busiest of a million needs more than fifty."""
FREE_MOVE_PRICE: Final = 1e-12
WARM_UP: Final = (1_000, 10)
"""Channels and servers of the decisions that are not counted."""


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    channels: int = 1_000_000
    servers: int = 1_000
    rounds: int = 3
    seed: int = 1


class PolicyContender(msgspec.Struct, frozen=True, kw_only=True):
    """A policy with its settings."""

    name: str
    policy: str
    settings: BalanceSettings
    budget: int | None = None
    """Limit on its moves; None for any number."""

    def decide(self, situation: Situation) -> Decision:
        """One decision."""
        return policy(self.policy)(situation, self.settings)


def contenders(channels: int) -> tuple[PolicyContender, ...]:
    """All contenders."""
    free = BalanceSettings(moves_max=channels, move_price=FREE_MOVE_PRICE, replicas_max=REPLICAS_MAX)
    budgets = [
        PolicyContender(
            name=f"{SHOAL}-{budget}",
            policy=SHOAL,
            settings=msgspec.structs.replace(free, moves_max=budget),
            budget=budget,
        )
        for budget in BUDGETS
    ]
    others = [PolicyContender(name=name, policy=name, settings=free) for name in POLICIES if name != SHOAL]
    return (PolicyContender(name=SHOAL, policy=SHOAL, settings=free), *budgets, *others)


def measure(options: PlanOptions, note: Callable[[str], None]) -> dict[str, Any]:
    """Runs everything; returns what `shoal bench plan --json` prints."""
    measured = contenders(options.channels)
    small = plan_load.situation(*WARM_UP, options.seed)
    warm_s: dict[str, float] = {}
    for contender in measured:
        began = time.perf_counter()
        contender.decide(small)
        warm_s[contender.name] = time.perf_counter() - began
    note(f"first decisions on {WARM_UP[0]} channels, compiling included: {sum(warm_s.values()):.1f} s")
    note(f"{options.channels:,} channels, placed by hash on {options.servers:,} servers")
    situation = plan_load.situation(options.channels, options.servers, options.seed)
    runs: dict[str, list[dict[str, float]]] = {}
    for number in range(options.rounds):
        first = number % len(measured)
        for contender in measured[first:] + measured[:first]:
            note(f"round {number + 1} of {options.rounds}: {contender.name}")
            runs.setdefault(contender.name, []).append(_run(contender, situation))
    bound = plan_load.bound(situation)
    rows: list[dict[str, Any]] = [
        {
            "contender": contender.name,
            "policy": contender.policy,
            "budget": contender.budget,
            **{name: median(run[name] for run in runs[contender.name]) for name in runs[contender.name][0]},
            "first_seconds": warm_s[contender.name],
        }
        for contender in measured
    ]
    return {
        "name": "plan",
        "workload": describe(options),
        "machine": machine(),
        "bound": bound,
        "max_load_ratio_before": float(plan_load.ratios(situation, situation.placements).max()),
        "rows": rows,
        "ratios": {f"max_load_of_{row['contender']}_vs_bound": row["max_load_ratio"] / bound for row in rows},
    }


def _run(contender: PolicyContender, situation: Situation) -> dict[str, float]:
    """One timed decision, and its result."""
    began, began_cpu = time.perf_counter(), time.process_time()
    decision = contender.decide(situation)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
    after = changed(situation.placements, decision.moves, decision.placements)
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "moves": len(decision),
        "max_load_ratio": float(plan_load.ratios(situation, after).max()),
        "degree_max": int(after.degree.max()),
    }


def describe(options: PlanOptions) -> dict[str, str]:
    """A description of the measurement."""
    return {
        "all": (
            f"{options.channels} channels with zipf loads (exponent {plan_load.EXPONENT:g}), placed by the hash ring "
            f"on {options.servers} servers, of which every other one has twice the capacity; divided perfectly, all "
            f"would be at a load ratio of {plan_load.BOUND:g} (the bound); no server can be added; one decision, on "
            f"one core; medians of {options.rounds} rounds"
        ),
        SHOAL: "any number of moves, at no cost",
        **{f"{SHOAL}-{budget}": f"at most {budget} moves" for budget in BUDGETS},
    }
