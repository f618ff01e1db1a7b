"""`shoal plan explain`, `audit` and `replay`: the reasons for placements, and checks of past decisions.

Owns the output. Explanations come from the coordinator; decisions and their inputs are in the audit log, a directory.
"""

from __future__ import annotations

import argparse
import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shoal.cli.output import Subparsers, add_command, plural, result
from shoal.cli.plan_pin import PinView, printable, read_pins, view_pin
from shoal.errors import PlanError

if TYPE_CHECKING:
    from shoal.balance.balancer_keys import Pin, Why
    from shoal.leader.audit_log import AuditLog

_TIMEOUT_S: Final = 5.0
_SHOWN: Final = 50


class Explanation(msgspec.Struct, frozen=True):
    """The reason for a placement. `source` is policy, hand or ring; the other fields are None unless a policy placed
    the channel.
    """

    channel: str
    mode: str
    servers: tuple[str, ...]
    home: str
    source: str
    reason: str
    figures: dict[str, float]
    policy: str | None = None
    digest: str | None = None
    window_end_s: float | None = None
    placed_at: float | None = None
    before: tuple[str, ...] | None = None
    pin: PinView | None = None
    """The pin, if the channel is pinned."""


def register_audit(group: Subparsers) -> None:
    """Add the commands to `shoal plan`."""
    explain = add_command(
        group,
        "explain",
        run_explain,
        "explain placements, with the measurements behind them",
        example="shoal plan explain tile.3.4\nshoal plan explain --json",
    )
    explain.add_argument(
        "channels", nargs="*", metavar="CHANNEL", help="channel to explain (default: all with an entry)"
    )
    audit = add_command(
        group,
        "audit",
        run_audit,
        "list the balancer's decisions",
        example="shoal plan audit\nshoal plan audit --all --json",
    )
    audit.add_argument("--all", action="store_true", help="include decisions without changes")
    replay = add_command(
        group,
        "replay",
        run_replay,
        "repeat a decision from its record, and compare",
        example="shoal plan replay 3f9a1c\nshoal plan replay audit/000001763215200123-3f9a1c0b12345678.decision",
    )
    replay.add_argument(
        "record", metavar="DIGEST|FILE", help="digest of the proposal or its beginning, or a record file"
    )
    for parser in (audit, replay):
        parser.add_argument(
            "--audit", metavar="DIR", help="directory of the audit log (default: in the state directory)"
        )


def run_explain(args: argparse.Namespace) -> int:
    """Explain placements."""
    from shoal.cli.plan import coordinator_of
    from shoal.wire.envelope import check_channel_name

    channels = [check_channel_name(name, args.settings.limits) for name in args.channels]
    url, key = coordinator_of(args)
    found = asyncio.run(_explain(url, key, channels))
    text = "\n".join(map(_explanation_text, found[:_SHOWN])) or "no channel has an entry: all are placed by the ring"
    result(args, {"channels": msgspec.to_builtins(found)}, text)
    return 0


async def _explain(url: str, key: bytes | None, channels: list[bytes]) -> list[Explanation]:
    from shoal.balance import balancer_keys
    from shoal.plan import keys
    from shoal.plan.book import PlanBook
    from shoal.plan.format import require_format
    from shoal.plan.signature import Verifier
    from shoal.runtime import PRODUCTION

    async with await PRODUCTION.coordinator(url, _TIMEOUT_S) as coordinator:
        await require_format(coordinator)
        stored = {name: kept.value for name, kept in (await coordinator.list(keys.PLAN_PREFIX)).items()}
        kept = await coordinator.list(balancer_keys.WHY_PREFIX)
        pins = await read_pins(coordinator) or {}
    key = key or stored.get(keys.PUBLIC_KEY)
    if key is None or keys.RING_KEY not in stored:
        raise PlanError("the coordinator has no plan yet", do="start the servers' agents and a balancer")
    book = PlanBook(Verifier(key))
    book.accept_ring(stored[keys.RING_KEY])
    for name, data in stored.items():
        if keys.entry_unit(name) is not None:
            book.accept_entry(data)
    whys = {channel: value for name, value in kept.items() if (channel := balancer_keys.why_channel(name)) is not None}
    return [
        _explanation(
            book,
            channel,
            balancer_keys.decode(whys[channel].value, balancer_keys.Why) if channel in whys else None,
            pins.get(channel),
        )
        for channel in channels or sorted(book.entries.keys() | pins.keys())
    ]


def _explanation(book: Any, channel: bytes, why: Why | None, pin: Pin | None) -> Explanation:
    placement = book.placement(channel)
    entry = book.entry(channel)
    place = {
        "channel": channel.decode("utf-8", "backslashreplace"),
        "pin": view_pin(channel, pin, placement) if pin else None,
        "mode": placement.mode.value,
        "servers": placement.servers,
        "home": book.ring.home(channel),
    }
    if entry is None:
        return Explanation(**place, source="ring", reason="hash of its name", figures={})
    newest = entry.placement
    if why is None or (why.after.mode, {*why.after.servers}) != (newest.mode, {*newest.servers}):
        return Explanation(**place, source="hand", reason="requested by hand", figures={})
    return Explanation(
        **place,
        source="policy",
        reason=why.reason,
        figures=why.figures,
        policy=why.policy,
        digest=why.digest,
        window_end_s=why.window_end_s,
        placed_at=why.at_s,
        before=why.before.servers,
    )


def _explanation_text(found: Explanation) -> str:
    from shoal.cli.plan_propose import figures_text

    where = f"{printable(found.channel.encode())}: {found.mode} on {', '.join(found.servers)}"
    where += f", {found.pin.text}" if found.pin else ""
    if found.source == "ring":
        return f"{where}: placed by the ring, by the hash of its name"
    if found.source == "hand":
        return f"{where}: requested by hand"
    assert found.window_end_s is not None
    assert found.before is not None
    assert found.digest is not None
    return (
        f"{where}\n"
        f"  reason: {found.reason}{figures_text(found.figures)}; before: {', '.join(found.before)}\n"
        f"  by policy {found.policy}, window until {_time_text(found.window_end_s)}, plan {found.digest[:12]}"
    )


def run_audit(args: argparse.Namespace) -> int:
    """List decisions."""
    from shoal.balance.decision_record import proposal_of
    from shoal.cli.plan_propose import other_facts, other_text
    from shoal.plan.kinds import ENGINE

    log = _log(args)
    outcomes: dict[str, list[Any]] = {}
    for outcome in log.outcomes():
        outcomes.setdefault(outcome.digest, []).append(outcome)
    decisions = []
    for file in log.files("decision", *(["quiet"] if args.all else [])):
        record = log.read(file.path)
        proposal = proposal_of(record)
        decisions.append(
            {
                "at": record.at_s,
                "digest": record.digest,
                "policy": record.policy,
                "asked": record.asked,
                "moves": proposal.moves_count,
                "servers": [f"{change.what} {change.server or change.count}" for change in proposal.servers],
                "hosts": [f"add {wanted.count} {wanted.kind}" for wanted in proposal.hosts],
                "engines": [other_text(one) for one in map(other_facts, proposal.others) if one["change"] == ENGINE],
                "max_ratio_before": proposal.max_ratio_before,
                "max_ratio_after": proposal.max_ratio_after,
                "outcomes": [
                    {"at": outcome.at_s, "state": outcome.state, **outcome.facts}
                    for outcome in outcomes.get(record.digest, [])
                ],
                "file": str(file.path),
                "version": record.version,
            }
        )
    changes = "" if args.all else " that change something; --all lists the others too"
    nothing = f"no decisions in {log.directory}{changes}"
    text = "\n".join(map(_decision_text, decisions[-_SHOWN:])) or nothing
    result(args, {"directory": str(log.directory), "decisions": decisions}, text)
    return 0


def _decision_text(decision: dict[str, Any]) -> str:
    from shoal.balance.decision_record import RECORD_VERSION

    states = ", ".join(outcome["state"] for outcome in decision["outcomes"]) or "proposed"
    wanted = [plural(decision["moves"], "move"), *decision["servers"], *decision["hosts"], *decision["engines"]]
    return (
        f"{_time_text(decision['at'])}  {decision['digest'][:12]}  {decision['policy']}: {', '.join(wanted)}; busiest "
        f"{decision['max_ratio_before']:.0%} -> {decision['max_ratio_after']:.0%}; {states}"
        + ("" if decision["version"] == RECORD_VERSION else f"; version {decision['version']}, cannot be replayed")
    )


def run_replay(args: argparse.Namespace) -> int:
    """Repeat a decision; exit status 0 only if it is the same."""
    from shoal.balance.decision_record import replay
    from shoal.load_kinds import REGISTRY

    path = Path(args.record)
    log = _log(args)
    record = log.read(path) if path.is_file() else log.find(args.record)
    again = replay(record, REGISTRY).digest
    same = again == record.digest
    facts = {"digest": record.digest, "replayed": again, "same": same, "policy": record.policy, "at": record.at_s}
    word = "the same decision" if same else f"a different decision: {again[:12]}"
    result(args, facts, f"{record.digest[:12]} of policy {record.policy}: {word}")
    return 0 if same else 1


def _log(args: argparse.Namespace) -> AuditLog:
    from shoal.cluster.state import state_dir_at
    from shoal.leader.audit_log import AuditLog

    return AuditLog(Path(args.audit) if args.audit else state_dir_at(args.settings.state_path).audit)


def _time_text(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
