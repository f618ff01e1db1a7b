"""`shoal coordinator backup` and `restore`: the coordinator's data in a file.

Owns the output. What is saved, and when a restore is refused, is in `shoal.leader.backup`.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shoal.cli.output import HelpFormatter, Subparsers, add_command, plural, result

if TYPE_CHECKING:
    from shoal.leader.backup import Backup

_TIMEOUT_S: Final = 10.0
_NOT_SAVED: Final = "users and passwords, the cluster's private key, leases, and the records of channels"
_EXAMPLE: Final = "shoal coordinator backup plan.backup\n  shoal coordinator restore plan.backup --json"


def register(subparsers: Subparsers) -> None:
    """Add the commands."""
    parser = subparsers.add_parser(
        "coordinator",
        help="save and restore the coordinator's data",
        description="Save the coordinator's data to a file, and put it back after its disk was lost.",
        epilog=f"example:\n  {_EXAMPLE}",
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    backup = add_command(
        group,
        "backup",
        run_backup,
        "save the coordinator's data to a new file",
        example="shoal coordinator backup plan.backup\n"
        "SHOAL_COORDINATOR=shoal://admin:PASSWORD@10.0.0.1:7400 \\\n  shoal coordinator backup /backup/plan-monday",
        description="Save plan, recording marks, pool, requested moves, the balancer's state and the agents' secrets, "
        f"all from one moment. Not saved: {_NOT_SAVED}.",
    )
    backup.add_argument("file", metavar="FILE", help="file to write; only you can read it, and it must not exist")
    restore = add_command(
        group,
        "restore",
        run_restore,
        "put a backup into an empty coordinator",
        example="shoal coordinator restore plan.backup",
        description="Restore a backup. Agents, clients and leaders may run meanwhile. If the coordinator has other "
        "data than format, key and ring of the same cluster, nothing is changed.",
    )
    restore.add_argument("file", metavar="FILE", help="file that `shoal coordinator backup` wrote")


def run_backup(args: argparse.Namespace) -> int:
    """Save the data."""
    from shoal.leader.backup import write_file

    backup = asyncio.run(_read(_url(args)))
    size = write_file(Path(args.file), backup)
    facts = {"file": args.file, "bytes": size, "keys": len(backup.keys), "not_saved": _NOT_SAVED}
    text = f"{plural(len(backup.keys), 'key')} in {args.file} ({size} bytes)"
    result(args, facts, "\n".join([text, *textwrap.wrap(f"not saved: {_NOT_SAVED}", 80)]))
    return 0


def run_restore(args: argparse.Namespace) -> int:
    """Restore the data."""
    from shoal.leader.backup import read_file

    backup = read_file(Path(args.file))
    written = asyncio.run(_restore(_url(args), backup))
    when = dt.datetime.fromtimestamp(backup.created_at, dt.UTC).isoformat(timespec="seconds")
    facts = {"file": args.file, "keys": len(backup.keys), "written": written, "created_at": when}
    result(args, facts, f"{written} of {len(backup.keys)} keys written, as of {when}; the others were there already")
    return 0


def _url(args: argparse.Namespace) -> str:
    from shoal.cli.plan import coordinator_of

    return coordinator_of(args)[0]


async def _read(url: str) -> Backup:
    from shoal.leader.backup import read_backup
    from shoal.runtime import PRODUCTION

    async with await PRODUCTION.coordinator(url, _TIMEOUT_S) as coordinator:
        return await read_backup(coordinator, time.time())


async def _restore(url: str, backup: Backup) -> int:
    from shoal.leader.backup import restore_backup
    from shoal.runtime import PRODUCTION

    async with await PRODUCTION.coordinator(url, _TIMEOUT_S) as coordinator:
        return await restore_backup(coordinator, backup)
