"""Liveness: what must hold at the end of a run, after the world has been healthy and quiet for a while.

Owns the check of the applications' routers. What they received is checked in `channel_checkers`.
"""

from __future__ import annotations

from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.scenarios.app import App


def check_settled(apps: list[App], verdict: Verdict) -> None:
    """Checks that all messages are confirmed, all subscriptions in force, and no table holds entries of finished
    work."""
    for app in apps:
        router = app.router
        who = f"{app.node.name} ({app.record.client:x})"
        verdict.violations += [f"late: {text}" for text in app.late]
        if router is None:
            verdict.violate("unsettled", f"{who} never found the cluster")
            continue
        if not router.settled:
            verdict.violate("unsettled", f"{who} has {router.pending_messages} messages unconfirmed")
        cores = [sub.core for sub in app.subs]
        verdict.violations += [f"unsettled: {who}: a subscription never came into force"] * cores.count(None)
        streams = 0
        for sub in filter(None, cores):
            found = sub.statistics()
            streams += found.streams
            if not sub.settled:
                verdict.violate("unsettled", f"{who}: {sub.text} is not in force everywhere: {found.servers}")
            held, early = found.held_messages, found.early_messages
            if held or early:
                verdict.violate("growth", f"{who}: {sub.text} still holds {held} messages, {early} early")
        state = router.statistics()
        if state.questions:
            verdict.violate("growth", f"{who} still waits for {state.questions} answers")
        # the timer of a resolved doubt stays for `gap_timeout_s`, so there may be one for each stream
        if state.timers > 60 + 4 * len(app.subs) + streams:
            verdict.violate("growth", f"{who} has {state.timers} timers in a quiet world")
