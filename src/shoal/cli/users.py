"""`shoal users`: new passwords for the roles of a local cluster, and a new secret for the agents of any cluster, while
it runs.

Owns the output, and the request for another generation of the agents' secret. The supervisor changes passwords
(`shoal.cluster.users`), the leader the secret (`shoal.leader.secret_rotation`), even if this command ends.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from shoal.cli.output import HelpFormatter, Subparsers, add_command, result
from shoal.errors import ConfigError, ConflictError, PlanError

if TYPE_CHECKING:
    from shoal.coordination.interface import Coordinator
    from shoal.plan.ring import Ring
    from shoal.plan.secret_rotation import Rotation

SECRET: Final = "agents-secret"
"""Named like a role: the secret from which the keys of all clients follow."""
_EXAMPLE: Final = "shoal users rotate client\n  shoal users revoke client --json\n  shoal users rotate agents-secret"
_TIMEOUT_S: Final = 120.0
"""Agents and balancers are restarted one after the other."""
_COORDINATOR_TIMEOUT_S: Final = 5.0
_SECRET_WAIT_S: Final = 30.0
"""How long a command waits for the leader."""
_POLL_S: Final = 0.1


def register(subparsers: Subparsers) -> None:
    """Add the commands."""
    parser = subparsers.add_parser(
        "users",
        help="change the passwords and the agents' secret of a running cluster",
        description="Change the passwords of a local cluster, or the agents' secret of any cluster, while it runs.",
        epilog=f"example:\n  {_EXAMPLE}",
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    rotate = add_command(
        group,
        "rotate",
        run_rotate,
        "give a role, or all roles, a new password; the old one stays valid until `revoke`",
        example="shoal users rotate\nshoal users rotate client\nshoal users rotate agents-secret",
        description="Add a second password. Servers and coordinator accept both, also after a restart. The new one is "
        "in the state directory, and the cluster's processes use it. With agents-secret: the agents get a new secret, "
        "and clients renew their keys. The old one stays valid until `revoke`, or for secret_overlap_s.",
    )
    revoke = add_command(
        group,
        "revoke",
        run_revoke,
        "remove the old password of a role, or of all roles, and close its connections",
        example="shoal users revoke\nshoal users revoke client\nshoal users revoke agents-secret",
        description="Close the role's connections. Clients that read the password from the state directory or from a "
        "file (password_file) connect again with the new one; others get AuthenticationError. With agents-secret: "
        "keys of the old secret become invalid. Clients that were away since the rotation continue under another id.",
    )
    for one in (rotate, revoke):
        one.add_argument("role", metavar="ROLE", nargs="?", help=f"a role (default: all roles), or {SECRET}")
    add_command(
        group,
        "secret",
        run_secret,
        "show which generations of the agents' secret are in force",
        example="shoal users secret --json",
    )


def run_rotate(args: argparse.Namespace) -> int:
    """Give roles new passwords, or the agents another secret."""
    return _change_secret(args, "rotate") if args.role == SECRET else _run(args, "rotate", "new password for")


def run_revoke(args: argparse.Namespace) -> int:
    """End old passwords, or the agents' old secret."""
    return _change_secret(args, "revoke") if args.role == SECRET else _run(args, "revoke", "old password ended for")


def run_secret(args: argparse.Namespace) -> int:
    """Show the generations of the agents' secret."""
    return _change_secret(args, None)


def _run(args: argparse.Namespace, do: Literal["rotate", "revoke"], done: str) -> int:
    from shoal.cluster.control_socket import request
    from shoal.cluster.state import state_dir_at

    if args.role == "":  # an unset variable of a script must not mean all roles
        raise ConfigError("the name of the role is empty", do="leave it out for all roles")
    reply = request(state_dir_at(args.settings.state_path), do, args.role or "", timeout_s=_TIMEOUT_S)
    text = f"{done} {', '.join(reply.roles)}"
    if reply.missed:
        text += f"; these did not answer and apply it when they are restarted: {', '.join(reply.missed)}"
    result(args, {"roles": list(reply.roles), "missed": list(reply.missed)}, text)
    return 0 if not reply.missed else 1


def _change_secret(args: argparse.Namespace, do: Literal["rotate", "revoke"] | None) -> int:
    from shoal.cli.plan import coordinator_of
    from shoal.runtime import PRODUCTION

    url, key = coordinator_of(args)

    async def run() -> dict[str, Any]:
        async with await PRODUCTION.coordinator(url, _COORDINATOR_TIMEOUT_S) as coordinator:
            return await change_secret(coordinator, key, do)

    facts = asyncio.run(run())
    result(args, facts, f"agents' secret: {secret_text(facts['generations'], facts['since_s'])}")
    return 0


async def change_secret(
    coordinator: Coordinator, key: bytes | None, do: Literal["rotate", "revoke"] | None
) -> dict[str, Any]:
    """Ask the leader for another generation of the agents' secret, or for the end of the older one, and wait until it
    is in force; with None only look. Raises PlanError if that cannot be, or if the leader does not do it."""
    from shoal.plan import keys
    from shoal.plan.secret_rotation import encode, generations, revoked, rotated

    ring, record, version = await _read(coordinator, key)
    if do is not None:
        if await coordinator.lease_of(keys.KEEPER_LEASE) is None:
            raise PlanError("no balancer is running: the plan's lease is not held", do="start the cluster (shoal up)")
        wanted = rotated(ring) if do == "rotate" else revoked(ring, record)
        try:
            await coordinator.put(keys.ROTATION_KEY, encode(wanted), version)
        except ConflictError as error:
            raise PlanError("the rotation of the agents' secret changed at the same time", do="try again") from error
        until = time.monotonic() + _SECRET_WAIT_S
        in_force = list(range(wanted.oldest, wanted.newest + 1))
        while generations(ring) != in_force or record is None or not record.since_s:
            await _pause(until)
            ring, record, _ = await _read(coordinator, key)
    return {"generations": generations(ring), "since_s": record.since_s if record is not None else 0.0}


async def _pause(until: float) -> None:
    if time.monotonic() > until:
        raise PlanError(
            f"the leader has not finished within {_SECRET_WAIT_S:g} s; it continues", do="see `shoal users secret`"
        )
    await asyncio.sleep(_POLL_S)


async def _read(coordinator: Coordinator, key: bytes | None) -> tuple[Ring, Rotation | None, int]:
    """The ring, the record of the last rotation, and the record's version."""
    from shoal.plan import keys
    from shoal.plan.format import require_format
    from shoal.plan.secret_rotation import decode
    from shoal.plan.signature import Verifier

    await require_format(coordinator)
    public = key
    if public is None and (stored := await coordinator.get(keys.PUBLIC_KEY)) is not None:
        public = stored.value
    kept = await coordinator.list(keys.RING_KEY)
    if public is None or keys.RING_KEY not in kept:
        raise PlanError("the coordinator has no plan yet", do="start the servers' agents and a balancer")
    record = kept.get(keys.ROTATION_KEY)
    ring = Verifier(public).ring(kept[keys.RING_KEY].value)
    return ring, decode(record.value) if record else None, record.version if record else 0


def secret_text(generations: Sequence[int], since_s: float) -> str:
    """The generations in words."""
    if not generations:
        return "none (messages are not authenticated)"
    text = f"generation {generations[-1]}"
    if since_s:
        text += f" for {max(0.0, time.time() - since_s):.0f} s"
    return text + "".join(f", generation {old} is still valid" for old in generations[:-1])
