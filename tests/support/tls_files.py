"""Certificates for tests: a small authority with a server and a client."""

from __future__ import annotations

from pathlib import Path

from shoal.cluster.authority import LOCAL_NAMES, Authority
from shoal.wire.tls import TlsSettings, role_files


class TlsFiles:
    """An authority with the certificates `server` and `client` in a directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority.create(folder, "test")
        self.issue_server()
        self.authority.issue("client", server=False, client=True)

    def issue_server(self, *hosts: str, valid_s: float = 3600.0) -> None:
        """Issue the server's certificate again."""
        self.authority.issue("server", hosts=hosts or LOCAL_NAMES, server=True, client=False, valid_s=valid_s)

    def settings(self, name: str = "client") -> TlsSettings:
        """The files of a name."""
        return role_files(self.folder, name)
