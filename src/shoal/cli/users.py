"""`shoal users rotate` and `revoke`: new passwords for the roles of a local cluster, while it runs.

Owns the output. The supervisor does the work (`shoal.cluster.users`).
"""

from __future__ import annotations

import argparse
from typing import Final, Literal

from shoal.cli.output import Subparsers, add_command, result

_EXAMPLE: Final = "shoal users rotate client\n  shoal users revoke client --json"
_TIMEOUT_S: Final = 120.0
"""Agents and balancers are restarted one after the other."""


def register(subparsers: Subparsers) -> None:
    """Add the commands."""
    parser = subparsers.add_parser(
        "users",
        help="change the passwords of a running cluster",
        description="Change the passwords of a local cluster while it runs.",
        epilog=f"example:\n  {_EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    rotate = add_command(
        group,
        "rotate",
        run_rotate,
        "give a role, or all roles, a new password; the old one stays valid until `revoke`",
        example="shoal users rotate\nshoal users rotate client",
        description="Servers and coordinator accept both passwords from now on, also after a restart. The state "
        "directory has the new one, and the cluster's own processes use it.",
    )
    revoke = add_command(
        group,
        "revoke",
        run_revoke,
        "end the old password of a role, or of all roles, and its connections",
        example="shoal users revoke\nshoal users revoke client",
        description="Connections of the role are cut. Clients that read the password from the state directory or from "
        "a file (password_file) connect again with the new one; others get AuthenticationError.",
    )
    for one in (rotate, revoke):
        one.add_argument("role", metavar="ROLE", nargs="?", default="", help="a role (default: all roles)")


def run_rotate(args: argparse.Namespace) -> int:
    """Give roles new passwords."""
    return _run(args, "rotate", "new password for")


def run_revoke(args: argparse.Namespace) -> int:
    """End old passwords."""
    return _run(args, "revoke", "old password ended for")


def _run(args: argparse.Namespace, do: Literal["rotate", "revoke"], done: str) -> int:
    from shoal.cluster.control_socket import request
    from shoal.cluster.state import state_dir_at

    reply = request(state_dir_at(args.settings.state_path), do, args.role, timeout_s=_TIMEOUT_S)
    text = f"{done} {', '.join(reply.roles)}"
    if reply.missed:
        text += f"; these did not answer and apply it when they are restarted: {', '.join(reply.missed)}"
    result(args, {"roles": list(reply.roles), "missed": list(reply.missed)}, text)
    return 0 if not reply.missed else 1
