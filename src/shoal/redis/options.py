"""The options of a client: redis-py's keywords and URLs, and which of them have a meaning on a cluster.

Owns the split of a URL into the cluster's address and redis-py's options, the check of keywords, and the address that
keywords describe.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from redis import asyncio as redis_py
from redis.asyncio.connection import URL_QUERY_ARGUMENT_PARSERS, to_bool

from shoal.bus.addresses import KEY_FIELD, PASSWORD_FIELD
from shoal.coordination.link import Address
from shoal.wire.tls import TlsSettings

PORT: Final = 7400
"""The coordinator's default port."""

ADDRESS_OPTIONS: Final = frozenset({"tls", *TlsSettings.__struct_fields__, KEY_FIELD, PASSWORD_FIELD})
"""Options in a URL that belong to the cluster's address."""

OPTION_PARSERS: Final = {**URL_QUERY_ARGUMENT_PARSERS, "decode_responses": to_bool}
"""redis-py's types of options in a URL. redis-py itself takes any text for `decode_responses` as true, even "False"."""

IGNORED: Final = frozenset(
    {
        "auto_close_connection_pool",
        "client_name",
        "driver_info",
        "health_check_interval",
        "legacy_responses",
        "lib_name",
        "lib_version",
        "max_connections",
        "parser_class",
        "protocol",
        "retry",
        "retry_on_error",
        "retry_on_timeout",
        "single_connection_client",
        "socket_keepalive",
        "socket_keepalive_options",
        "socket_read_size",
    }
)
"""redis-py's keywords for connections. They are accepted and ignored: the bus manages its own connections. Of `retry`
only "none" has a meaning, see `without_retries`."""

_URL: Final = re.compile(r"(?P<scheme>shoals?)://(?P<places>[^/?#]+)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?")
_KNOWN: Final = inspect.signature(redis_py.Redis.__init__).parameters


def read_url(url: str) -> tuple[str, dict[str, Any]]:
    """Splits a URL into the cluster's address and redis-py's options."""
    parts = _URL.fullmatch(url)
    if parts is None:
        raise ValueError(
            f"{_without_login(url)!r} is not the address of a cluster: write shoal://user:password@host:port"
        )
    address: list[tuple[str, str]] = []
    options: dict[str, Any] = {}
    for name, value in parse_qsl(parts["query"] or ""):
        if name in ADDRESS_OPTIONS:
            address.append((name, value))
            continue
        try:
            options.setdefault(name, OPTION_PARSERS.get(name, str)(value))
        except (TypeError, ValueError) as error:
            raise ValueError(f"invalid value for {name!r} in the URL: {value!r}") from error
    if database := parts["path"].strip("/"):
        options.setdefault("db", database)
    query = f"?{urlencode(address, safe='/')}" if address else ""
    return f"{parts['scheme']}://{parts['places']}{query}", options


def _without_login(url: str) -> str:
    return url.rpartition("@")[2]


def check_keywords(keywords: Mapping[str, Any]) -> None:
    """Rejects keywords that would change nothing here although they were meant to. redis-py's default values always
    pass, and None."""
    for name, value in keywords.items():
        if name in IGNORED:
            continue
        if name not in _KNOWN:
            close = difflib.get_close_matches(name, _KNOWN, 1)
            hint = f": did you mean {close[0]!r}?" if close else " of redis-py's client"
            raise TypeError(f"{name!r} is not an option{hint}")
        if value is not None and value != _KNOWN[name].default:
            raise TypeError(f"{name}: not supported on a Shoal cluster (see docs/redis-surface.md)")


def without_retries(keywords: Mapping[str, Any]) -> bool:
    """Whether redis-py's keywords ask for no retries, so that a reader gets an error for each broken connection."""
    if "retry" not in keywords:
        return False
    retry = keywords["retry"]
    if retry is None:  # redis-py then retries once after errors that are named
        return not (keywords.get("retry_on_error") or keywords.get("retry_on_timeout"))
    return getattr(retry, "_retries", None) == 0  # redis-py 5 has no public name for it


def check_database(db: int | str | None) -> None:
    """Rejects a database other than 0."""
    if str(db or 0) != "0":
        raise TypeError(f"database {db}: a Shoal cluster has none, channels are the same for all; leave it out")


def with_login(url: str, username: str | None, password: str | None) -> str:
    """A cluster's address with the login of the keywords, unless it has its own."""
    scheme, _, rest = url.partition("://")
    if "@" in re.split(r"[/?#]", rest, maxsplit=1)[0] or (username is None and password is None):
        return url
    login = quote(username or "client", safe="") + (f":{quote(password, safe='')}" if password is not None else "")
    return f"{scheme}://{login}@{rest}"


def address_of(
    host: str | None, port: int | None, username: str | None, password: str | None, tls: TlsSettings | None
) -> str | None:
    """The cluster's address from its parts; None (the local cluster) if none is given."""
    if host is None and port is None:
        if username is not None or password is not None or tls is not None:
            raise TypeError("username, password and ssl need a host; or put them into the URL")
        return None
    user = None if password is None else username or "client"
    return Address(host or "127.0.0.1", port or PORT, user, password, tls).url


def tls_of(ssl: bool, ca: str | None, cert: str | None, key: str | None) -> TlsSettings | None:
    """The TLS that redis-py's keywords ask for. What they leave out comes from the environment."""
    if not ssl:
        if ca or cert or key:
            raise TypeError("the files are for TLS: give ssl=True too")
        return None
    return TlsSettings(ca=ca or "", cert=cert or "", key=key or "")
