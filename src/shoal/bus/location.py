"""Finds the cluster if the application gives no address: $SHOAL_URL, else the state directory of a local cluster.

Owns reading the client's part of `cluster.json`: the coordinator's address, the client's password and its TLS files. It
writes nothing and starts nothing; the file belongs to `shoal.cluster`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from shoal.bus.addresses import PLACES_MAX, join_addresses
from shoal.config import default_state_dir
from shoal.coordination.link import Address
from shoal.errors import ClusterNotFoundError
from shoal.wire.tls import role_files

URL_VARIABLE: Final = "SHOAL_URL"
STATE_DIR_VARIABLE: Final = "SHOAL_STATE_DIR"
CLUSTER_FILE: Final = "cluster.json"
ROLE: Final = "client"


class _Address(msgspec.Struct, frozen=True):
    host: str
    port: int


class _Supervisor(msgspec.Struct, frozen=True):
    pid: int


class _Cluster(msgspec.Struct, frozen=True):
    """The part of `cluster.json` that a client reads."""

    supervisor: _Supervisor
    coordinator: _Address
    passwords: dict[str, str]
    tls_dir: str = ""
    servers: tuple[_Address, ...] = ()
    public_key: str = ""
    stopped: bool = False


def named_cluster(environ: Mapping[str, str] = os.environ) -> str | None:
    """The address in $SHOAL_URL; None if clients without an address use the local cluster."""
    return environ.get(URL_VARIABLE) or None


def find_url(
    state_dir: str | Path | None = None,
    environ: Mapping[str, str] = os.environ,
    role: str = ROLE,
    *,
    servers: bool = False,
) -> str:
    """Return the address of the cluster for a client or another role. Raises ClusterNotFoundError if there is none.

    An explicit directory wins over $SHOAL_URL, which wins over $SHOAL_STATE_DIR and the default directory. With
    `servers`, the address of a local cluster names all its servers and its public key, for a bus.
    """
    if state_dir is None and (named := named_cluster(environ)) is not None:
        return named
    chosen = state_dir or environ.get(STATE_DIR_VARIABLE) or default_state_dir(environ)
    directory = Path(chosen).expanduser().absolute()
    cluster = _read(directory)
    if role not in cluster.passwords:
        raise ClusterNotFoundError(
            f"the cluster in {directory} has no {role} user", do="run `shoal down`, then `shoal up`"
        )
    if cluster.stopped:
        raise ClusterNotFoundError(
            f"the cluster in {directory} is stopped; its stores are kept", do="run `shoal up` to continue it"
        )
    if not _runs(cluster.supervisor.pid):
        raise ClusterNotFoundError(
            f"the cluster in {directory} ended without cleaning up",
            do="run `shoal up` to continue it, or `shoal down` to remove it",
        )
    tls = role_files(cluster.tls_dir, role) if cluster.tls_dir else None
    places = (cluster.coordinator, *cluster.servers[: PLACES_MAX - 1]) if servers else (cluster.coordinator,)
    key = cluster.public_key if servers else ""
    addresses = [Address(place.host, place.port, role, cluster.passwords[role], tls) for place in places]
    return join_addresses(addresses, key)


def _read(directory: Path) -> _Cluster:
    path = directory / CLUSTER_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Cluster)
    except (FileNotFoundError, NotADirectoryError):
        raise ClusterNotFoundError(
            f"no cluster runs in {directory}", do="run `shoal up`, or give another address: shoal://host:port"
        ) from None
    except PermissionError:
        raise ClusterNotFoundError(f"{path} belongs to another user", do="ask that user, or run `shoal up`") from None
    except msgspec.DecodeError as error:
        raise ClusterNotFoundError(f"cannot read {path}: {error}", do="run `shoal down`, then `shoal up`") from None


def _runs(pid: int) -> bool:
    """Return whether a process with that id exists. If the id was reused, connecting will fail."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
