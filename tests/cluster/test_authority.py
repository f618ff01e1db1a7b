"""An authority in a directory: it issues certificates for servers and clients, and issues them again."""

from __future__ import annotations

import ssl
import stat
import time
from pathlib import Path

import pytest

from shoal.cluster.acl import ADMIN, AGENT, CLIENT
from shoal.cluster.authority import Authority, IssuedCertificate, issued
from shoal.cluster.local_certificates import LocalCertificates
from shoal.errors import TlsError
from shoal.wire.tls import client_context, role_files


def test_files_are_private_and_loaded_again(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "tls", "test")
    authority.issue("s1", hosts=("10.0.0.1", "s1.example", "::1"), server=True, client=False)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tls").iterdir()} == {0o600}
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700
    again = Authority.load(tmp_path / "tls")
    assert again is not None
    assert again.expires_at == authority.expires_at


def test_a_directory_without_an_authority_has_none(tmp_path: Path) -> None:
    assert Authority.load(tmp_path) is None
    assert Authority.load(tmp_path / "missing") is None


def test_a_damaged_authority_is_refused(tmp_path: Path) -> None:
    Authority.create(tmp_path / "one", "one")
    Authority.create(tmp_path / "two", "two")
    (tmp_path / "one" / "ca.key").write_bytes((tmp_path / "two" / "ca.key").read_bytes())
    with pytest.raises(TlsError, match=r"ca.key in .* is not the key of ca.pem"):
        Authority.load(tmp_path / "one")
    (tmp_path / "two" / "ca.pem").write_text("garbage")
    with pytest.raises(TlsError, match="cannot read the authority"):
        Authority.load(tmp_path / "two")


def test_a_renewed_certificate_has_the_same_names_and_purposes_and_another_key(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "test")
    hosts = ("10.0.0.1", "::1", "s1.example")
    path = authority.issue("s1", hosts=hosts, server=True, client=False, valid_s=10)
    before, found = path.read_bytes(), IssuedCertificate(path)
    assert (found.name, found.hosts) == ("s1", hosts)
    found.renew(authority, 1000)
    after = IssuedCertificate(path)
    assert after.hosts == hosts
    assert 990 < after.expires_at - time.time() < 1010
    assert path.read_bytes().split(b"-----END PRIVATE")[0] != before.split(b"-----END PRIVATE")[0]
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)


def test_a_local_cluster_has_a_certificate_for_each_role(tmp_path: Path) -> None:
    certificates = LocalCertificates(tmp_path, "test", 30.0, 1000.0)
    certificates.issue_server("s1", "10.1.2.3")
    names = {certificate.name: certificate.hosts for certificate in issued(tmp_path)}
    assert names["s1"][0] == "10.1.2.3"
    assert names[CLIENT] == ()
    assert "localhost" in names[AGENT]
    assert "localhost" in names[ADMIN]
    client_context(role_files(tmp_path, CLIENT))


def test_a_local_cluster_renews_when_a_third_is_left(tmp_path: Path) -> None:
    now = time.time()
    certificates = LocalCertificates(tmp_path, "test", 3000.0, 100000.0, lambda: now)
    certificates.issue_server("s1", "10.1.2.3")
    assert certificates.pause_s == pytest.approx(2000.0)
    files = {path.name: path.read_bytes() for path in tmp_path.glob("*.pem")}
    now += 2001.0
    assert certificates.pause_s < 0
    (tmp_path / "client.pem").unlink()  # an operator's mistake is repaired too
    certificates.renew()
    assert certificates.pause_s == pytest.approx(2000.0)
    renewed = {path.name: path.read_bytes() for path in tmp_path.glob("*.pem")}
    assert renewed.keys() == files.keys()
    assert {name for name in files if renewed[name] == files[name]} == {"ca.pem"}


def test_an_authority_near_its_end_is_replaced_at_a_start(tmp_path: Path) -> None:
    LocalCertificates(tmp_path, "test", 30.0, 1000.0)
    first = (tmp_path / "ca.pem").read_bytes()
    LocalCertificates(tmp_path, "test", 30.0, 1000.0)
    assert (tmp_path / "ca.pem").read_bytes() == first
    LocalCertificates(tmp_path, "test", 30.0, 4000.0)
    assert (tmp_path / "ca.pem").read_bytes() != first
