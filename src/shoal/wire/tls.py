"""TLS for connections: its settings, the contexts made from them, and the errors for what goes wrong.

Owns `TlsSettings`, reading them from a URL's query, and the loaded contexts. `shoal.wire.dial` puts a context on a
connection. Files are read again when they have changed, so new connections use renewed certificates without a restart.

    shoals://client:password@host:7400?ca=ca.pem&cert=client.pem
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias
from urllib.parse import parse_qsl, urlencode

import msgspec

from shoal.errors import ConfigError, TlsError
from shoal.logs import get_log

ENV_PREFIX: Final = "SHOAL_TLS_"
CONTEXTS_MAX: Final = 64
"""Contexts that a process keeps. Above it the oldest is loaded again when it is needed."""

ALERT_RECORD: Final = 0x15
"""First byte of a TLS alert, with which a TLS server answers plain text."""

_SWITCHES: Final = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_OWN_ALERTS: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "requires a client certificate",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "refused the handshake; it may require a client certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "refused this client's certificate: another authority issued it",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "refused this client's certificate: it has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "refused this client's certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "refused this client's certificate: it is not for clients",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "refused this client's certificate: it was revoked",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "refused this client's certificate",
    "TLSV1_ALERT_DECRYPT_ERROR": "refused this client's certificate: it does not fit its key or authority",
}
"""Alerts of a server about the client's certificate."""
NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"})

_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_UNKNOWN_AUTHORITY: Final = frozenset({7, 18, 19, 20, 21, 30})
_WRONG_NAME: Final = frozenset({62, 64})
_WRONG_PURPOSE: Final = 26
"""OpenSSL's verification results."""

_log: Final = get_log(__name__)


class TlsSettings(msgspec.Struct, frozen=True):
    """TLS of the connections of a process: which servers it trusts, and the certificate that it shows them."""

    ca: str = ""
    """PEM file of the authority that issued the servers' certificates; empty means the system's authorities."""

    cert: str = ""
    """PEM file of this process's certificate; empty means none. It may also contain the key."""

    key: str = ""
    """PEM file of the certificate's key; empty means that the file `cert` contains it."""

    server_name: str = ""
    """Name that servers' certificates must have; empty means the host that is connected to."""

    verify: bool = True
    """Whether servers' certificates and names are checked. Without, anybody on the network can pose as a server."""

    def validate(self) -> None:
        """Raise ConfigError if the values contradict each other."""
        if self.key and not self.cert:
            raise ConfigError(f"the TLS key {self.key} has no certificate", do="set cert too")

    def query(self) -> str:
        """The settings as the query of a URL; `read_query` reads it."""
        given = {name: getattr(self, name) for name in ("ca", "cert", "key", "server_name") if getattr(self, name)}
        return urlencode(given if self.verify else {**given, "verify": "no"}, safe="/")

    def files(self) -> tuple[str, ...]:
        """The files that are read."""
        return tuple(filter(None, (self.ca, self.cert, self.key)))


TLS_DIRECTORY: Final = "tls"
"""The directory of certificates in the state directory of a local cluster."""
AUTHORITY_FILE: Final = "ca.pem"
"""The authority's certificate in a directory of certificates."""


def role_files(folder: str | os.PathLike[str], name: str) -> TlsSettings:
    """The settings of a role, or of a server, whose files are in a directory of certificates."""
    return TlsSettings(ca=os.path.join(folder, AUTHORITY_FILE), cert=os.path.join(folder, f"{name}.pem"))


PUBLIC: Final = frozenset({"ca", "cert"})
"""Settings that users may need to change. docs/security.md describes the others too."""


def from_environment(environ: Mapping[str, str]) -> TlsSettings:
    """The settings in SHOAL_TLS_CA, SHOAL_TLS_CERT and so on."""
    return _completed({}, environ)


def read_query(query: str, *, secure: bool, environ: Mapping[str, str]) -> TlsSettings | None:
    """The settings in a URL's query; None without TLS. `secure` says whether the scheme asks for TLS. What the query
    leaves out comes from the environment."""
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in ("tls", *TlsSettings.__struct_fields__):
            raise ConfigError(
                f"unknown option {name!r} in the address",
                do=f"options are tls, {', '.join(TlsSettings.__struct_fields__)}",
            )
        given[name] = value
    wanted = _switch("tls", given.pop("tls", "yes" if secure else "no"))
    if secure and not wanted:
        raise ConfigError("the address asks for TLS and forbids it (tls=no)", do="write shoal:// for no TLS")
    if given and not wanted:
        raise ConfigError(
            f"the address has {', '.join(given)} but does not ask for TLS", do="write shoals://, or add tls=yes"
        )
    return _completed(given, environ) if wanted else None


def _completed(given: Mapping[str, str], environ: Mapping[str, str]) -> TlsSettings:
    """Settings from an address, and from the environment. A key belongs to the certificate beside which it is given."""
    values = dict(given)
    for name in TlsSettings.__struct_fields__:
        if name not in values and not (name == "key" and "cert" in given):
            values[name] = environ.get(f"{ENV_PREFIX}{name.upper()}", "")
    verify = _switch("verify", values.pop("verify") or "yes")
    paths = {name: os.path.expanduser(values[name]) for name in ("ca", "cert", "key") if values.get(name)}
    settings = TlsSettings(**paths, server_name=values["server_name"], verify=verify)
    settings.validate()
    return settings


def _switch(name: str, text: str) -> bool:
    if text.lower() not in _SWITCHES:
        raise ConfigError(f"{name} is {text!r}", do="write yes or no")
    return _SWITCHES[text.lower()]


# -- contexts ----------------------------------------------------------------------------------------------------------

_Stamp: TypeAlias = tuple[tuple[int, int, int], ...]
_contexts: Final[dict[tuple[TlsSettings, str], tuple[_Stamp, ssl.SSLContext]]] = {}
_CLIENT: Final = "client"
_LATE_CLIENT: Final = "client that ignores expiry"
_PAGE: Final = "page"
_IGNORE_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME."""


def client_context(settings: TlsSettings, *, ignore_expiry: bool = False) -> ssl.SSLContext:
    """The context for connections to servers, from the files as they are now; raises TlsError if they are unusable.

    With `ignore_expiry` a server's certificate may have expired; its authority and name are still checked.
    """
    return _context(settings, _LATE_CLIENT if ignore_expiry else _CLIENT)


def page_context(settings: TlsSettings | None) -> Callable[[], ssl.SSLContext] | None:
    """What gives the context for a page that this process serves with its own certificate; None if it has none."""
    if settings is None or not settings.cert:
        return None
    return lambda: _context(settings, _PAGE)


def _context(settings: TlsSettings, purpose: str) -> ssl.SSLContext:
    """A kept context is used while its files are unchanged, and while they are being replaced."""
    at = settings, purpose
    kept = _contexts.get(at)
    try:
        stamp = tuple(_stamp(path) for path in settings.files())
        if kept is not None and kept[0] == stamp:
            return kept[1]
        context = _load(settings, purpose)
    except TlsError as error:
        if kept is None:
            raise
        _log.warning("TLS files not usable, the last ones are used", why=str(error))
        return kept[1]
    if kept is None and len(_contexts) >= CONTEXTS_MAX:
        _contexts.pop(next(iter(_contexts)), None)
    _contexts[at] = stamp, context
    return context


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    return found.st_ino, found.st_mtime_ns, found.st_size


def _load(settings: TlsSettings, purpose: str) -> ssl.SSLContext:
    from shoal.wire import tls_expiry  # only processes that use TLS need it

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if purpose == _PAGE else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if purpose == _LATE_CLIENT:
        context.verify_flags = ssl.VerifyFlags(context.verify_flags | _IGNORE_TIME)
    if purpose != _PAGE:
        context.check_hostname = settings.verify
        context.verify_mode = ssl.CERT_REQUIRED if settings.verify else ssl.CERT_NONE
        if settings.ca:
            _load_authority(context, settings.ca)
        elif settings.verify:
            context.load_default_certs()
    if settings.cert:
        _load_certificate(context, settings.cert, settings.key or None)
    for path in filter(None, (settings.ca, settings.cert)):
        tls_expiry.note(path)
    return context


def _load_authority(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise TlsError(
            f"{path} is not a file of certificates ({error.reason or error})",
            do="give the authority's certificate in PEM format as ca",
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _load_certificate(context: ssl.SSLContext, cert: str, key: str | None) -> None:
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as error:
        where = f"{cert} and {key}" if key else cert
        if error.reason == "KEY_VALUES_MISMATCH":
            what, do = f"the key does not fit the certificate in {where}", "give the key of this certificate"
        else:
            what = f"{where}: no certificate with its key ({error.reason or error})"
            do = "give both in PEM format, as cert and key, or in one file as cert"
        raise TlsError(what, do=do) from error
    except OSError as error:
        unreadable = next((path for path in (cert, key) if path and not os.access(path, os.R_OK)), cert)
        raise _unreadable(unreadable, error) from error


def _no_password() -> str:
    raise TlsError("the TLS key is encrypted", do="give a key without a passphrase, in a file with mode 0600")


def _unreadable(path: str, error: OSError) -> TlsError:
    reason = (error.strerror or str(error)).lower()
    return TlsError(f"cannot read the TLS file {path}: {reason}", do="check its path and its permissions")


# -- errors ------------------------------------------------------------------------------------------------------------


def explain(error: ssl.SSLError, where: str) -> TlsError:
    """The error for a failed handshake, or for an alert of the server after it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        found = _untrusted(error, where)
    elif error.reason in _OWN_ALERTS:
        found = TlsError(
            f"{where} {_OWN_ALERTS[error.reason]}",
            do="give a certificate of the cluster's authority for this role, and its key, as cert and key; "
            "`shoal tls renew` issues new ones",
        )
    elif error.reason in NOT_TLS:
        found = lacks_tls(where)
    else:
        found = TlsError(
            f"no TLS connection to {where} ({error.reason or error})",
            do="check that both sides have a TLS version and an authority in common",
        )
    found.__cause__ = error
    return found


def _untrusted(error: ssl.SSLCertVerificationError, where: str) -> TlsError:
    code = error.verify_code
    reason = error.verify_message.rstrip(".")
    if code == _EXPIRED:
        return TlsError(
            f"the certificate of {where} has expired", do="renew it (`shoal tls renew`), or check this machine's clock"
        )
    if code == _NOT_YET_VALID:
        return TlsError(f"the certificate of {where} is not valid yet", do="check the clocks of both machines")
    if code in _UNKNOWN_AUTHORITY:
        return TlsError(
            f"the certificate of {where} is not from a trusted authority ({reason})",
            do="give the file of the cluster's authority: shoals://...?ca=FILE, or SHOAL_TLS_CA",
        )
    if code in _WRONG_NAME:
        return TlsError(
            f"the certificate of {where} is for another name ({reason})",
            do="connect to a name that the certificate has, or set server_name to one",
        )
    if code == _WRONG_PURPOSE:
        return TlsError(
            f"the certificate of {where} is not for a server ({reason})", do="give the server its own certificate"
        )
    return TlsError(f"the certificate of {where} is not trusted ({reason})", do="give the server another certificate")


def lacks_tls(where: str) -> TlsError:
    """The error for a server that does not use TLS."""
    return TlsError(
        f"{where} does not use TLS on this port",
        do="give the server's TLS port, or write shoal:// for a server without TLS",
    )


def expects_tls(where: str) -> TlsError:
    """The error for a server that does not accept plain text."""
    return TlsError(f"{where} expects TLS", do="write shoals:// instead of shoal://, with the authority's file as ca")
