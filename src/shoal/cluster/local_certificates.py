"""The certificates of a local cluster with TLS: one for each server and each role, renewed while the cluster runs.

Owns the directory `tls` of the state directory, and when its certificates are renewed. The authority survives the
cluster: the next one in the same directory uses it, so that clients which know its file need no new one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import hiredis

from shoal.cluster.acl import ADMIN, AGENT, RENEWER, ROLES
from shoal.cluster.authority import LOCAL_NAMES, RENEW_AT_SHARE, Authority, issued
from shoal.errors import ShoalError
from shoal.logs import get_log
from shoal.plan.ring import ServerAddress
from shoal.runtime import PRODUCTION
from shoal.wire.connection import Connection
from shoal.wire.tls import TlsSettings, role_files

RETRY_S: Final = 5.0
"""How long to wait after a renewal that a server did not accept."""
CHECK_S_MAX: Final = 3600.0
"""How often the expiry is checked at least; clocks jump."""
_TIMEOUT_S: Final = 5.0

_log: Final = get_log(__name__)


class LocalCertificates:
    """The authority and the certificates of one local cluster. `valid_s` is how long a certificate is valid."""

    def __init__(self, folder: Path, cluster: str, valid_s: float, authority_s: float) -> None:
        found = Authority.load(folder)
        if found is None or found.expires_at - time.time() < authority_s * RENEW_AT_SHARE:
            found = Authority.create(folder, cluster, authority_s)
        for certificate in issued(folder):  # of the last cluster in this directory
            (folder / f"{certificate.name}.pem").unlink(missing_ok=True)
        self.folder = folder
        self._authority = found
        self._valid_s = valid_s
        for role in ROLES:
            self._issue_role(role)

    def settings(self, role: str) -> TlsSettings:
        """The files of a role."""
        return role_files(self.folder, role)

    def issue_server(self, name: str, host: str) -> TlsSettings:
        """Issue the certificate of a server, or of the coordinator; return its files."""
        self._authority.issue(name, hosts=(host, *LOCAL_NAMES), server=True, client=False, valid_s=self._valid_s)
        return role_files(self.folder, name)

    def forget(self, server: str) -> None:
        """Delete the certificate of a server that was removed."""
        Path(role_files(self.folder, server).cert).unlink(missing_ok=True)

    def _issue_role(self, role: str) -> None:
        """Agents and balancers also serve metrics pages with their certificate."""
        serves = role in (AGENT, ADMIN)
        hosts = LOCAL_NAMES if serves else ()
        self._authority.issue(role, hosts=hosts, server=serves, client=True, valid_s=self._valid_s)

    def expires_at(self) -> float:
        """The time of day at which the first certificate expires."""
        return min(certificate.expires_at for certificate in issued(self.folder))

    def is_due(self) -> bool:
        """Whether a certificate should be renewed now."""
        return self.expires_at() - time.time() <= self.renewal_ahead_s

    @property
    def renewal_ahead_s(self) -> float:
        """How long before its expiry a certificate is renewed."""
        return self._valid_s * RENEW_AT_SHARE

    def renew(self) -> None:
        """Issue all certificates again. Clients use them for their next connections; servers must be told."""
        for certificate in issued(self.folder):
            certificate.renew(self._authority, self._valid_s)


class CertificateRenewal:
    """Renews the certificates of a running cluster, and tells its servers. `servers` lists them, coordinator included.

    The user `renewer` may change the configuration of the servers. Its password never leaves this process.
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
            if self._certificates.is_due():
                try:
                    await self.renew()
                except OSError as error:
                    _log.error("certificates not renewed, retrying", why=str(error), do="check the disk")
            elif self._behind:
                await self._tell(server for server in self._servers() if server.id in self._behind)
            await asyncio.sleep(self._pause_s())

    async def renew(self) -> tuple[str, ...]:
        """Renew now; return the servers that did not accept their new certificate and will be told again."""
        self._certificates.renew()
        await self._tell(self._servers())
        _log.info("certificates renewed", behind=",".join(sorted(self._behind)))
        return tuple(sorted(self._behind))

    async def _tell(self, servers: Iterable[ServerAddress]) -> None:
        await asyncio.gather(*map(self._reload, list(servers)))

    def _pause_s(self) -> float:
        if self._behind:
            return RETRY_S
        left_s = self._certificates.expires_at() - time.time()
        return min(CHECK_S_MAX, max(0.1, left_s - self._certificates.renewal_ahead_s))

    async def _reload(self, server: ServerAddress) -> None:
        """Tell a server to read its certificate again."""
        path = role_files(self._certificates.folder, server.id).cert
        try:
            await reload_certificate(server, self._password, path, self._certificates.settings(ADMIN))
            self._behind.discard(server.id)
        except (ShoalError, hiredis.ReplyError) as error:
            self._behind.add(server.id)
            _log.warning("server did not load its new certificate, retrying", server=server.id, why=str(error))


async def reload_certificate(server: ServerAddress, password: str, path: str, tls: TlsSettings) -> None:
    """Make a server read its certificate and key again. New connections get the new certificate."""
    to = PRODUCTION.with_tls(tls).address_book.reach(server)
    connection = Connection(
        to.host,
        to.port,
        username=RENEWER,
        password=password,
        name="shoal-supervisor",
        dial=to.dial,
        connect_timeout_s=_TIMEOUT_S,
        answer_timeout_s=_TIMEOUT_S,
    )
    async with connection:
        await connection.ask((b"CONFIG", b"SET", b"tls-cert-file", path))
