"""`shoal plan propose` and `shoal plan apply`: show the policy's next proposal, and apply exactly that.

Owns the requests and the output. The leading balancer decides and applies; a proposal is identified by its digest.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shoal.cli.output import Subparsers, add_command, plural, result
from shoal.cli.plan_pin import names_text, printable, read_pins
from shoal.errors import ConfigError, PlanError
from shoal.plan.kinds import ENGINE

if TYPE_CHECKING:
    from shoal.balance.balancer_keys import Ask, AskOutcome
    from shoal.balance.change import Change, ChannelMove, ServerChange
    from shoal.balance.proposal import Proposal
    from shoal.coordination.interface import Coordinator

_TIMEOUT_S: Final = 5.0
_WAIT_S: Final = 20.0
_POLL_S: Final = 0.05
_SHOWN: Final = 20
"""Moves shown as text; --json has all."""


def register_propose(group: Subparsers) -> None:
    """Add the commands to `shoal plan`."""
    propose = add_command(
        group,
        "propose",
        run_propose,
        "show what the policy would do now",
        example="shoal plan propose\nshoal plan propose --policy dynamoth --json\nshoal plan propose --out next.plan",
        description="Ask the balancer what its policy, or another one, would do with the load of the last window. "
        "Nothing is changed. Use the digest with shoal plan apply.",
    )
    propose.add_argument("--policy", default="", metavar="NAME", help="another policy than the balancer's")
    propose.add_argument("--out", metavar="FILE", help="write the proposal to this file")
    _add_timeout(propose)
    apply = add_command(
        group,
        "apply",
        run_apply,
        "apply a proposal exactly as it was proposed",
        example="shoal plan apply 3f9a1c\nshoal plan apply next.plan",
        description="Apply a proposal, byte for byte as it was proposed. It is rejected if the plan has changed since.",
    )
    apply.add_argument(
        "proposal", metavar="DIGEST|FILE", help="digest of the proposal or its beginning, or the file of --out"
    )
    _add_timeout(apply)


def _add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout", type=float, default=_WAIT_S, metavar="S", help=f"seconds to wait (default {_WAIT_S:g})"
    )


def run_propose(args: argparse.Namespace) -> int:
    """Ask for a proposal."""
    from shoal.balance.balancer_keys import Ask
    from shoal.balance.proposal import decode_proposal, digest_of
    from shoal.cli.balancer import checked_policy

    if args.policy:
        checked_policy(args.policy)
    answer, pinned = _request(args, Ask("propose", policy=args.policy))
    proposal = decode_proposal(answer.proposal)
    if digest_of(answer.proposal) != answer.digest:
        raise PlanError("the digest of the proposal does not match its content")
    if args.out:
        Path(args.out).write_bytes(answer.proposal)
    left = f"\n  pinned, so left alone: {names_text(pinned)}" if pinned else ""
    facts = {**facts_of(proposal), "pinned": [printable(channel) for channel in pinned]}
    result(args, facts, text_of(proposal) + left)
    return 0


def run_apply(args: argparse.Namespace) -> int:
    """Apply a proposal."""
    from shoal.balance.balancer_keys import Ask

    digest = _digest_of_file(Path(args.proposal))
    answer, _ = _request(args, Ask("apply", digest=digest or args.proposal), resolve=digest is None)
    facts = {"digest": answer.digest, "applied": True, "moves": answer.moves}
    result(args, facts, f"{answer.digest[:12]} applied, {plural(answer.moves, 'move')}; see shoal plan show --moves")
    return 0


def _digest_of_file(path: Path) -> str | None:
    """Return the digest of the proposal in a file; None if there is no such file."""
    from shoal.balance.proposal import decode_proposal

    if not path.is_file():
        return None
    return decode_proposal(path.read_bytes()).digest


def _request(args: argparse.Namespace, ask: Ask, *, resolve: bool = False) -> tuple[AskOutcome, tuple[bytes, ...]]:
    """Return the balancer's answer, and the pinned channels."""
    from shoal.cli.plan import coordinator_of

    if not 0 < args.timeout < math.inf:
        raise ConfigError(f"--timeout is {args.timeout:g}", do="give a number of seconds above 0")
    url, _ = coordinator_of(args)
    return asyncio.run(_ask(url, ask, args.timeout, resolve))


async def _ask(url: str, ask: Ask, wait_s: float, resolve: bool) -> tuple[AskOutcome, tuple[bytes, ...]]:
    """Send a request to the balancer and wait for its answer; raises PlanError if it is rejected or not answered."""
    from shoal.balance import balancer_keys
    from shoal.runtime import PRODUCTION

    id = secrets.token_hex(8)
    async with await PRODUCTION.coordinator(url, _TIMEOUT_S) as coordinator:
        if resolve:
            ask = msgspec.structs.replace(ask, digest=await _whole_digest(coordinator, ask.digest))
        await coordinator.put(balancer_keys.ask_key(id), balancer_keys.encode(ask))
        try:
            answer = await _answer(coordinator, balancer_keys.answer_key(id), wait_s)
        finally:
            await coordinator.delete(balancer_keys.ask_key(id))
            await coordinator.delete(balancer_keys.answer_key(id))
        pinned = tuple(await read_pins(coordinator) or ())
    if answer.error:
        raise PlanError(answer.error)
    return answer, pinned


async def _answer(coordinator: Coordinator, key: str, wait_s: float) -> AskOutcome:
    from shoal.balance import balancer_keys

    until = time.monotonic() + wait_s
    while (stored := await coordinator.get(key)) is None:
        if time.monotonic() >= until:
            raise PlanError(
                f"no balancer answered within {wait_s:g} s", do="start one (shoal balancer), or see its log"
            )
        await asyncio.sleep(_POLL_S)
    return balancer_keys.decode(stored.value, balancer_keys.AskOutcome)


async def _whole_digest(coordinator: Coordinator, beginning: str) -> str:
    """Complete the beginning of a digest."""
    from shoal.balance.balancer_keys import PROPOSALS_PREFIX

    known = [key.removeprefix(PROPOSALS_PREFIX) for key in await coordinator.list(PROPOSALS_PREFIX)]
    found = [digest for digest in known if digest.startswith(beginning)]
    if not beginning or not found:
        raise PlanError(f"unknown proposal {beginning!r}", do="request one with shoal plan propose")
    if len(found) > 1:
        raise PlanError(f"{len(found)} proposals begin with {beginning}", do="give more characters of the digest")
    return found[0]


def facts_of(proposal: Proposal) -> dict[str, Any]:
    """Return a proposal as JSON fields."""
    facts: dict[str, Any] = {"digest": proposal.digest, **msgspec.structs.asdict(proposal)}
    del facts["format"], facts["changes"]
    facts["moves"] = [_change_facts(move) for move in proposal.moves]
    facts["servers"] = [_change_facts(change) for change in proposal.servers]
    facts["others"] = [other_facts(change) for change in (*proposal.others, *proposal.hosts)]
    return facts


def other_facts(change: Change) -> dict[str, Any]:
    """Return the change of another kind as JSON fields; its kind is under `change`."""
    facts: dict[str, Any] = msgspec.to_builtins(change, builtin_types=(bytes,))
    if (unit := facts.get("unit")) is not None:
        facts["unit"] = printable(unit)
    return facts


def _change_facts(change: ChannelMove | ServerChange) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(change, builtin_types=(bytes,))
    del facts["change"]
    if (unit := facts.pop("unit", None)) is not None:
        facts = {"channel": unit.decode("utf-8", "backslashreplace"), **facts}
    return facts


def text_of(proposal: Proposal) -> str:
    """Format a proposal as text."""
    lines = [
        f"proposal {proposal.digest[:12]} of policy {proposal.policy}: {plural(proposal.moves_count, 'move')}, "
        f"busiest server {proposal.max_ratio_before:.0%} -> {proposal.max_ratio_after:.0%}"
    ]
    for change in proposal.servers:
        what = f"add {plural(change.count, 'server')}" if change.what == "add" else f"{change.what} {change.server}"
        lines.append(f"  {what}: {change.reason}{figures_text(change.figures)}")
    for move in proposal.moves[:_SHOWN]:
        lines.append(
            f"  {printable(move.unit)}: {place_text(move.before)} -> {place_text(move.after)}: "
            f"{move.reason}{figures_text(move.figures)}"
        )
    if len(proposal.moves) > _SHOWN:
        lines.append(f"  and {len(proposal.moves) - _SHOWN} more")
    for wanted in proposal.hosts:
        lines.append(f"  add {wanted.count} {wanted.kind}: {wanted.reason}{figures_text(wanted.figures)}")
    for other in map(other_facts, proposal.others[:_SHOWN]):
        lines.append(f"  {other_text(other)}: {other['reason']}{figures_text(other['figures'])}")
    if len(proposal.others) > _SHOWN:
        lines.append(f"  and {len(proposal.others) - _SHOWN} more")
    if proposal.is_empty:
        lines.append("  no changes")
    return "\n".join(lines)


def other_text(other: dict[str, Any]) -> str:
    """Format the change of another kind: its unit, and the configuration of an engine before and after."""
    text = f"{other['change']} {other['unit']}"
    if other["change"] == ENGINE:
        before, after = ("-".join(map(str, other[name])) for name in ("before", "after"))
        text += f": {before} -> {after}"
    return text


def place_text(place: Any) -> str:
    """Format a placement."""
    servers = ", ".join(place.servers)
    return servers if place.mode == "single" else f"{place.mode} on {servers}"


def figures_text(figures: dict[str, float]) -> str:
    """Format the measurements behind a reason."""
    return f" ({', '.join(f'{name} {value:.4g}' for name, value in figures.items())})" if figures else ""
