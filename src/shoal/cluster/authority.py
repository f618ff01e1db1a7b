"""A certificate authority in a directory, and the certificates that it issues.

Owns the files: `ca.pem` and `ca.key` for the authority, and `NAME.pem` with the certificate and the key of NAME
together, so that one rename replaces both. All files have mode 0600. Redis, Python and Spark read them.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shoal.cluster.state import write_private
from shoal.errors import TlsError
from shoal.wire.tls import AUTHORITY_FILE

KEY_FILE: Final = "ca.key"
AUTHORITY_S: Final = 10 * 365 * 86400.0
"""How long an authority is valid."""
CERTIFICATE_S: Final = 90 * 86400.0
"""How long a certificate is valid."""
RENEW_AT_SHARE: Final = 1 / 3
"""Certificates are renewed when less than this share of their time is left."""
CLOCK_SKEW: Final = dt.timedelta(minutes=5)
"""How far the clock of a verifying machine may be behind."""
LOCAL_NAMES: Final = ("127.0.0.1", "::1", "localhost")


class Authority:
    """An authority: it issues certificates into its directory."""

    def __init__(self, folder: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.folder = folder
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, folder: Path, name: str, valid_s: float = AUTHORITY_S) -> Self:
        """Make a new authority and write its files."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(f"Shoal authority {name}")
        certificate = (
            _builder(subject, subject, key.public_key(), valid_s)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_private(folder / KEY_FILE, _pem(key))
        _replace(folder / AUTHORITY_FILE, certificate.public_bytes(serialization.Encoding.PEM))
        return cls(folder, certificate, key)

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Read an authority; None if the directory has none. TlsError if its files are damaged."""
        try:
            certificate = x509.load_pem_x509_certificate((folder / AUTHORITY_FILE).read_bytes())
            key = serialization.load_pem_private_key((folder / KEY_FILE).read_bytes(), None)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise TlsError(
                f"cannot read the authority in {folder} ({error})", do="restore its files, or make a new authority"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise TlsError(f"{KEY_FILE} in {folder} is not the key of {AUTHORITY_FILE}", do="restore both files")
        return cls(folder, certificate, key)

    @property
    def expires_at(self) -> float:
        """The time of day at which the authority expires, and all its certificates with it."""
        return self._certificate.not_valid_after_utc.timestamp()

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = (),
        server: bool,
        client: bool,
        valid_s: float = CERTIFICATE_S,
    ) -> Path:
        """Issue a certificate with a new key as `NAME.pem`. `hosts` are the names and IP addresses of a server."""
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH] if server else []
        purposes += [ExtendedKeyUsageOID.CLIENT_AUTH] if client else []
        builder = (
            _builder(_name(name), self._certificate.subject, key.public_key(), valid_s)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if hosts:
            names = [_general_name(host) for host in dict.fromkeys(hosts)]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        path = self.folder / f"{name}.pem"
        _replace(path, _pem(key) + certificate.public_bytes(serialization.Encoding.PEM))
        return path


class IssuedCertificate:
    """A certificate of an authority, read from its file: the facts that are needed to issue it again."""

    def __init__(self, path: Path) -> None:
        try:
            self._certificate = x509.load_pem_x509_certificates(path.read_bytes())[0]
        except (OSError, ValueError) as error:
            raise TlsError(f"{path} has no certificate ({error})", do="issue it again") from error
        self.name = path.stem

    def renew(self, authority: Authority, valid_s: float) -> Path:
        """Issue it again, for the same names and purposes, with a new key."""
        purposes = self._certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        return authority.issue(
            self.name,
            hosts=self.hosts,
            server=ExtendedKeyUsageOID.SERVER_AUTH in purposes,
            client=ExtendedKeyUsageOID.CLIENT_AUTH in purposes,
            valid_s=valid_s,
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names and IP addresses that it is for."""
        try:
            found = self._certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return ()
        return tuple(str(name.value) for name in found)

    @property
    def expires_at(self) -> float:
        """The time of day at which it expires."""
        return self._certificate.not_valid_after_utc.timestamp()


def issued(folder: Path) -> list[IssuedCertificate]:
    """The certificates in the directory of an authority, by name."""
    return [IssuedCertificate(path) for path in sorted(folder.glob("*.pem")) if path.name != AUTHORITY_FILE]


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, valid_s: float
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + dt.timedelta(seconds=valid_s))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _replace(path: Path, data: bytes) -> None:
    """Write a private file so that readers see the old or the new one."""
    new = path.with_name(f".{path.name}.new")
    write_private(new, data)
    new.replace(path)
