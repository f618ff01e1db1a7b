"""`shoal tls init`, `renew`, `show`: certificates for a cluster with TLS.

Owns the output of these commands and the generated configuration. The authority is in `shoal.cluster.authority`; the
supervisor of a local cluster renews its certificates itself.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shoal.cli.numbers import positive_int
from shoal.cli.output import HelpFormatter, Subparsers, add_command, result
from shoal.errors import ConfigError, TlsError

if TYPE_CHECKING:
    from shoal.cluster.authority import Authority

COORDINATOR: Final = "coordinator"
CONFIGURATION: Final = "redis.conf"
_DAY_S: Final = 86400.0
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_EXAMPLE: Final = (
    "shoal tls init --dir tls --coordinator 10.0.0.1 --server s1=10.0.0.11 --server s2=10.0.0.12,s2.example\n"
    "shoal tls show --dir tls --json\nshoal tls renew --dir tls"
)


def register(subparsers: Subparsers) -> None:
    """Add the command group."""
    parser = subparsers.add_parser(
        "tls",
        help="make and renew the certificates of a cluster with TLS",
        description="Make and renew the certificates of a cluster with TLS.",
        epilog="example:\n  " + _EXAMPLE.replace("\n", "\n  "),
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    init = add_command(
        group,
        "init",
        run_init,
        "make an authority, certificates for servers and roles, and the lines of their configuration",
        example=_EXAMPLE.splitlines()[0],
    )
    init.add_argument(
        "--dir", required=True, type=Path, metavar="DIR", help="directory of the authority; keep it secret"
    )
    init.add_argument(
        "--coordinator",
        required=True,
        metavar="HOSTS",
        help="names and IP addresses of the coordinator: 10.0.0.1,c.lan",
    )
    init.add_argument(
        "--server",
        action="append",
        default=[],
        metavar="ID=HOSTS",
        help="id of a server, and its names and IP addresses; repeat it for each server",
    )
    init.add_argument(
        "--days", type=positive_int, default=90, metavar="N", help="validity of certificates (default 90)"
    )
    renew = add_command(
        group,
        "renew",
        run_renew,
        "issue all certificates again, for the same names, with new keys",
        description="With --dir: issue the certificates of `shoal tls init` again; copy them to their machines.\n"
        "Without: renew those of the local cluster, and make its servers load them. Its supervisor also renews them "
        "before they expire.",
        example="shoal tls renew --dir tls\nshoal tls renew",
    )
    renew.add_argument(
        "--dir", type=Path, metavar="DIR", help="directory of the authority (default: the local cluster)"
    )
    renew.add_argument(
        "--days", type=positive_int, default=90, metavar="N", help="validity of certificates (default 90)"
    )
    show = add_command(
        group, "show", run_show, "show names and expiry of all certificates", example="shoal tls show --dir tls"
    )
    show.add_argument("--dir", type=Path, metavar="DIR", help="directory of the authority (default: the local cluster)")


def run_init(args: argparse.Namespace) -> int:
    """Make an authority with all certificates."""
    from shoal.cluster.acl import ADMIN, AGENT, ROLES
    from shoal.cluster.authority import LOCAL_NAMES, Authority

    servers = {COORDINATOR: _hosts(args.coordinator), **dict(map(_server, args.server))}
    if len(servers) != len(args.server) + 1 or {*servers} & {*ROLES}:
        raise ConfigError(
            "two servers have the same id, or one has the name of a role", do=f"use other ids than {', '.join(ROLES)}"
        )
    folder: Path = args.dir.absolute()
    if Authority.load(folder) is not None:
        raise ConfigError(f"{folder} has an authority already", do="use `shoal tls renew`, or another directory")
    authority = Authority.create(folder, folder.name)
    valid_s = args.days * _DAY_S
    for name, hosts in servers.items():
        authority.issue(name, hosts=(*hosts, *LOCAL_NAMES), server=True, client=False, valid_s=valid_s)
        (folder / f"{name}.{CONFIGURATION}").write_text(_configuration(name))
    for role in ROLES:  # agents and balancers also serve metrics pages
        serves = role in (AGENT, ADMIN)
        authority.issue(role, hosts=LOCAL_NAMES if serves else (), server=serves, client=True, valid_s=valid_s)
    lines = [
        f"authority in {folder}; ca.key stays here, with mode 0600",
        "copy to each machine, as /etc/shoal/tls/, readable for its processes only:",
        *(f"  {name:<12} ca.pem {name}.pem {name}.{CONFIGURATION}" for name in servers),
        *(f"  {role:<12} ca.pem {role}.pem" for role in ROLES),
        f"NAME.{CONFIGURATION} has lines for that server's redis.conf",
        "then, with TLS=/etc/shoal/tls:",
        '  SHOAL_URL="shoals://ROLE:PASSWORD@HOST:PORT?ca=$TLS/ca.pem&cert=$TLS/ROLE.pem"',
    ]
    result(args, _facts(folder, authority), "\n".join(lines))
    return 0


def run_renew(args: argparse.Namespace) -> int:
    """Issue all certificates again."""
    from shoal.cluster.authority import issued

    if args.dir is None:
        return _renew_local(args)
    authority = _load(args.dir)
    certificates = issued(authority.folder)
    for certificate in certificates:
        certificate.renew(authority, args.days * _DAY_S)
    lines = [
        f"{len(certificates)} certificates renewed in {authority.folder}",
        "copy each over the old file; processes of Shoal use it for their next connections",
        "then make each server load its own, as a user that may change the configuration:",
        "  redis-cli --tls ... CONFIG SET tls-cert-file /etc/shoal/tls/NAME.pem tls-key-file /etc/shoal/tls/NAME.pem",
    ]
    result(args, _facts(authority.folder, authority), "\n".join(lines))
    return 0


def _renew_local(args: argparse.Namespace) -> int:
    from shoal.cluster.control_socket import request
    from shoal.cluster.state import state_dir_at

    directory = state_dir_at(args.settings.state_path)
    behind = request(directory, "renew").servers
    facts = {**_facts(directory.tls, _load(directory.tls)), "behind": list(behind)}
    waiting = f"; not loaded yet, and told again: {', '.join(behind)}" if behind else ""
    result(args, facts, f"certificates of the local cluster renewed{waiting}")
    return 0 if not behind else 1


def run_show(args: argparse.Namespace) -> int:
    """Show all certificates; exit status 0 only if none has expired."""
    from shoal.cluster.state import state_dir_at

    folder: Path = args.dir if args.dir is not None else state_dir_at(args.settings.state_path).tls
    facts = _facts(folder, _load(folder))
    lines = [f"{'name':<14}{'days left':>10}  hosts"]
    for row in facts["certificates"]:
        lines.append(f"{row['name']:<14}{row['days_left']:>10.1f}  {', '.join(row['hosts'])}".rstrip())
    result(args, facts, "\n".join(lines))
    return 0 if all(row["days_left"] > 0 for row in facts["certificates"]) else 1


def _facts(folder: Path, authority: Authority) -> dict[str, Any]:
    from shoal.cluster.authority import issued

    now = time.time()
    rows = [{"name": "authority", "hosts": [], "days_left": (authority.expires_at - now) / _DAY_S}]
    rows += [
        {"name": one.name, "hosts": list(one.hosts), "days_left": (one.expires_at - now) / _DAY_S}
        for one in issued(folder)
    ]
    return {"dir": str(folder), "certificates": rows}


def _load(folder: Path) -> Authority:
    from shoal.cluster.authority import Authority

    found = Authority.load(folder.absolute())
    if found is None:
        raise TlsError(f"no authority in {folder}", do="make one: `shoal tls init`, or `shoal up --tls`")
    return found


def _configuration(name: str) -> str:
    """Return the lines for the server's redis.conf. Its other lines stay, except `port`."""
    from shoal.cluster.servers import tls_configuration
    from shoal.wire.tls import role_files

    lines = [
        "# Replace the line `port N` by these two lines.",
        "port 0",
        "tls-port 7400" if name == COORDINATOR else "tls-port 6379",
    ]
    return "\n".join([*lines, *tls_configuration(role_files("/etc/shoal/tls", name))]) + "\n"


def _server(text: str) -> tuple[str, tuple[str, ...]]:
    name, equals, hosts = text.partition("=")
    if not equals or _NAME.fullmatch(name) is None:
        raise ConfigError(f"--server is {text!r}", do="write it as s1=10.0.0.11, or s1=10.0.0.11,s1.example")
    return name, _hosts(hosts)


def _hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(word.strip() for word in text.split(",") if word.strip())
    if not hosts or any(":" in host and host.count(":") == 1 for host in hosts):
        raise ConfigError(f"{text!r} names no hosts", do="give names or IP addresses, without ports")
    return hosts
