"""The certificates of a local cluster with TLS: one for each server and each role, renewed while the cluster runs.

Owns the directory `tls` of the state directory, and when its certificates are renewed. The authority survives the
cluster: the next one in the same directory uses it, so that clients which know its file need no new one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import hiredis

from shoal.cluster.acl import ADMIN, AGENT, ROLES, SUPERVISOR
from shoal.cluster.authority import LOCAL_NAMES, RENEW_AT_SHARE, Authority
from shoal.cluster.parts import tell
from shoal.errors import ShoalError
from shoal.logs import get_log
from shoal.plan.ring import ServerAddress
from shoal.wire.tls import AUTHORITY_FILE, TlsSettings, role_files

RETRY_S: Final = 5.0
"""How long to wait after a renewal that a server did not accept."""
CHECK_S_MAX: Final = 3600.0
"""How often the expiry is checked at least; clocks jump."""
_TIMEOUT_S: Final = 20.0
"""How long a server may take to load its certificate."""

_log: Final = get_log(__name__)


class LocalCertificates:
    """The authority and the certificates of one local cluster. `valid_s` is how long a certificate is valid; `wall` is
    the time of day."""

    def __init__(
        self, folder: Path, cluster: str, valid_s: float, authority_s: float, wall: Callable[[], float] = time.time
    ) -> None:
        found = Authority.load(folder)
        if found is None or found.expires_at - wall() < authority_s * RENEW_AT_SHARE:
            found = Authority.create(folder, cluster, authority_s)
        for path in folder.glob("*.pem"):  # of the last cluster in this directory
            if path.name != AUTHORITY_FILE:
                path.unlink(missing_ok=True)
        self.folder = folder
        self._authority = found
        self._valid_s = valid_s
        self._wall = wall
        self._servers: dict[str, tuple[str, ...]] = {}
        self._expires_at: dict[str, float] = {}
        for role in ROLES:
            self._issue_role(role)

    def settings(self, role: str) -> TlsSettings:
        """The files of a role."""
        return role_files(self.folder, role)

    def issue_server(self, name: str, host: str) -> TlsSettings:
        """Issue the certificate of a server, or of the coordinator; return its files."""
        self._servers[name] = (host, *LOCAL_NAMES)
        self._issue(name, self._servers[name], server=True, client=False)
        return role_files(self.folder, name)

    def forget(self, server: str) -> None:
        """Delete the certificate of a server that was removed."""
        self._servers.pop(server, None)
        self._expires_at.pop(server, None)
        Path(role_files(self.folder, server).cert).unlink(missing_ok=True)

    def renew(self) -> None:
        """Issue all certificates again. Clients use them for their next connections; servers must be notified."""
        for role in ROLES:
            self._issue_role(role)
        for name, hosts in self._servers.items():
            self._issue(name, hosts, server=True, client=False)

    def _issue_role(self, role: str) -> None:
        """Agents and balancers also serve metrics pages with their certificate."""
        serves = role in (AGENT, ADMIN)
        self._issue(role, LOCAL_NAMES if serves else (), server=serves, client=True)

    def _issue(self, name: str, hosts: Sequence[str], *, server: bool, client: bool) -> None:
        self._authority.issue(name, hosts=hosts, server=server, client=client, valid_s=self._valid_s)
        self._expires_at[name] = self._wall() + self._valid_s

    def expires_at(self) -> float:
        """The time of day at which the first certificate expires."""
        return min(self._expires_at.values())

    @property
    def pause_s(self) -> float:
        """How long no certificate needs to be renewed; 0 or less if one is due."""
        return self.expires_at() - self._valid_s * RENEW_AT_SHARE - self._wall()


class CertificateRenewal:
    """Renews the certificates of a running cluster, and tells its servers. `servers` lists them, coordinator included.

    Only the user `supervisor` may change the configuration of the servers; `password` is its.
    """

    def __init__(
        self, certificates: LocalCertificates, servers: Callable[[], Iterable[ServerAddress]], password: str
    ) -> None:
        self._certificates = certificates
        self._servers = servers
        self._password = password
        self._behind: set[str] = set()

    async def run(self) -> None:
        """Renew in time until cancelled."""
        while True:
            if self._certificates.pause_s <= 0:
                try:
                    await self.renew()
                except OSError as error:
                    _log.error("certificates not renewed, retrying", why=str(error), do="check the state directory")
            elif self._behind:
                await self._tell(server for server in self._servers() if server.id in self._behind)
            pause_s = self._certificates.pause_s
            await asyncio.sleep(RETRY_S if self._behind or pause_s <= 0 else min(pause_s, CHECK_S_MAX))

    async def renew(self) -> tuple[str, ...]:
        """Renew now; return the servers that did not accept their new certificate; they are notified again."""
        self._certificates.renew()
        await self._tell(self._servers())
        _log.info("certificates renewed", behind=",".join(sorted(self._behind)))
        return tuple(sorted(self._behind))

    async def _tell(self, servers: Iterable[ServerAddress]) -> None:
        await asyncio.gather(*map(self._reload, list(servers)))

    async def _reload(self, server: ServerAddress) -> None:
        """Tell a server to read its certificate again."""
        path = role_files(self._certificates.folder, server.id).cert
        try:
            command = ("CONFIG", "SET", "tls-cert-file", path)
            tls = self._certificates.settings(ADMIN)
            await tell(server.host, server.port, SUPERVISOR, self._password, command, tls=tls, timeout_s=_TIMEOUT_S)
            self._behind.discard(server.id)
        except (ShoalError, hiredis.ReplyError) as error:
            self._behind.add(server.id)
            _log.warning("server did not load its new certificate, retrying", server=server.id, why=str(error))
