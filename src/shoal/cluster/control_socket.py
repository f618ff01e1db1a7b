"""The supervisor's control socket: requests and answers on a Unix socket in the state directory.

Owns the format of requests (one JSON object on one line, answered by one) and both ends of the socket. Only the owner
of the state directory can reach it. The cluster carries out the requests.

    {"do": "status"} or {"do": "down"}
    {"do": "kill", "name": "s1"}, and likewise restart, hold, release, pause, resume
    {"do": "add", "count": 2}, and "kind" and "site" of the hosts; answered with their ids when their processes run
    {"do": "remove", "name": "s1"}, a host and its agent
    {"do": "engines", "count": 4}, processes of the engine, those that run included
    {"do": "recover", "source": "/backup/q1"}, a store from its directory; "replace" if it runs and has lost its data
    {"do": "renew"}, the certificates; answered with the servers that have not loaded theirs yet
    {"do": "rotate", "name": "client"}, and likewise revoke: the passwords of a role, or of all roles ("")
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from shoal.cluster.state import StateDir
from shoal.cluster.status import ClusterStatus
from shoal.errors import ClusterError, NotRunningError, ShoalError
from shoal.plan.kinds import SERVER

if TYPE_CHECKING:
    from shoal.cluster.local import LocalCluster

REQUEST_BYTES_MAX: Final = 65536
ANSWER_TIMEOUT_S: Final = 40.0
"""How long an answer may take: a restart waits until the process is ready."""

ADD_MAX: Final = 100
"""Most hosts that one request can add."""

Action = Literal[
    "status",
    "down",
    "kill",
    "restart",
    "hold",
    "release",
    "pause",
    "resume",
    "add",
    "remove",
    "engines",
    "recover",
    "rotate",
    "revoke",
    "renew",
]


class ControlRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to the supervisor; `name` is the process or host, `count` the number of hosts of `kind` to add at
    `site`."""

    do: Action
    name: str = ""
    count: int = 1
    kind: str = SERVER
    site: str = ""
    source: str = ""
    replace: bool = False


class ControlReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a request; `servers` are the added servers, or those that have not loaded their certificate."""

    ok: bool
    error: str = ""
    status: ClusterStatus | None = None
    servers: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    """The roles whose passwords were changed."""
    missed: tuple[str, ...] = ()
    """The servers that did not answer."""


_requests: Final = msgspec.json.Decoder(ControlRequest)
_answers: Final = msgspec.json.Decoder(ControlReply)


@contextlib.asynccontextmanager
async def serve_requests(cluster: LocalCluster, end: Callable[[], None]) -> AsyncIterator[None]:
    """Serve requests for the cluster; `end` is called after a request to stop it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            if not line:
                return
            answer = await _answer(cluster, line)
            writer.write(msgspec.json.encode(answer) + b"\n")
            await writer.drain()
            if answer.ok and _requests.decode(line).do == "down":
                end()
        except (ConnectionError, ValueError):
            return  # the client disconnected, or its line was too long: no answer
        finally:
            writer.close()

    # It gets its name when it listens: `shoal up` waits for the name, and then connects.
    unnamed = cluster.directory.socket_file.with_name("control.sock.new")
    unnamed.unlink(missing_ok=True)
    with _short_path(unnamed) as path:
        server = await asyncio.start_unix_server(serve, path, limit=REQUEST_BYTES_MAX)
    unnamed.chmod(0o600)
    unnamed.rename(cluster.directory.socket_file)
    async with server:
        yield


async def _answer(cluster: LocalCluster, line: bytes) -> ControlReply:
    try:
        request = _requests.decode(line)
        match request.do:
            case "status":
                return ControlReply(True, status=cluster.status())
            case "kill":
                await cluster.kill(request.name)
            case "restart":
                await cluster.restart(request.name)
            case "hold":
                cluster.hold(request.name)
            case "release":
                cluster.release(request.name)
            case "pause":
                cluster.pause(request.name)
            case "resume":
                cluster.resume(request.name)
            case "add":
                if not 1 <= request.count <= ADD_MAX:
                    raise ClusterError(f"cannot add {request.count} {request.kind}s", do=f"ask for 1 to {ADD_MAX}")
                added = await cluster.add_hosts(request.kind, request.count, request.site)
                return ControlReply(True, servers=added)
            case "remove":
                await cluster.remove_host(request.name)
            case "engines":
                if not 1 <= request.count <= ADD_MAX:
                    raise ClusterError(f"cannot run {request.count} engines", do=f"ask for 1 to {ADD_MAX}")
                await cluster.run_engines(request.count)
            case "recover":
                return ControlReply(True, servers=(await cluster.recover_store(Path(request.source), request.replace),))
            case "renew":
                return ControlReply(True, servers=await cluster.renew_certificates())
            case "rotate" | "revoke":
                roles, missed = await (cluster.rotate if request.do == "rotate" else cluster.revoke)(request.name)
                return ControlReply(True, roles=tuple(roles), missed=missed)
            case "down":
                pass
    except msgspec.DecodeError as error:
        return ControlReply(False, f"invalid request: {error}")
    except (ShoalError, TimeoutError) as error:
        return ControlReply(False, str(error) or "the request timed out")
    except OSError as error:
        return ControlReply(False, f"the supervisor could not write a file: {error}: check the disk")
    return ControlReply(True)


def request(
    directory: StateDir,
    do: Action,
    name: str = "",
    *,
    count: int = 1,
    kind: str = SERVER,
    site: str = "",
    source: str = "",
    replace: bool = False,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> ControlReply:
    """Send a request to the supervisor of a state directory; blocks. Raises NotRunningError without an answer,
    ClusterError if it is rejected.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection, _short_path(directory.socket_file) as path:
            connection.settimeout(timeout_s)
            connection.connect(path)
            connection.sendall(
                msgspec.json.encode(ControlRequest(do, name, count, kind, site, source, replace)) + b"\n"
            )
            data = b"".join(iter(lambda: connection.recv(REQUEST_BYTES_MAX), b""))
        answer = _answers.decode(data)
    except (OSError, msgspec.DecodeError) as error:
        raise NotRunningError(
            f"the supervisor in {directory.root} does not answer ({error})",
            do="run `shoal down`, then `shoal up`",
        ) from error
    if not answer.ok:
        raise ClusterError(answer.error)
    return answer


@contextlib.contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """Return a short name for a path: Unix sockets allow at most 107 bytes, and a state directory may be longer."""
    try:
        descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    except FileNotFoundError as error:
        raise NotRunningError(f"the directory {path.parent} does not exist", do="run `shoal up`") from error
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)
