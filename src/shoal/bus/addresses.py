"""The address of a cluster as an application gives it: one login and several places to ask for the plan.

    shoal://user:password@h1:7400,h2:7401?cluster_key=<public key of the cluster in hex>
    shoal://user@h1:7400?password_file=/etc/shoal/client.password

Owns the split of such an address into one address for each place, the pinned key, and reading the password's file. Each
place is the coordinator or a server of the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec

from shoal.coordination.link import Address
from shoal.errors import ConfigError

KEY_FIELD: Final = "cluster_key"
PASSWORD_FIELD: Final = "password_file"
KEY_BYTES: Final = 32
PLACES_MAX: Final = 64
_AUTHORITY_END: Final = re.compile(r"[/?#]")


class ClusterAddress(msgspec.Struct, frozen=True):
    """The places of a cluster in the order in which they are asked, each as a URL of its own with the same login."""

    urls: tuple[str, ...]
    key: bytes | None = None
    """The cluster's public key, if the address pins it."""


def split_address(url: str) -> ClusterAddress:
    """Split the address of a cluster. ConfigError if it has no place, too many, or an invalid key."""
    scheme, _, rest = (url if "://" in url else f"shoal://{url}").partition("://")
    authority = _AUTHORITY_END.split(rest, 1)[0]  # for `urlsplit` several places are no valid authority
    parts = urlsplit(f"{scheme}://places{rest[len(authority) :]}")
    login, at, places = authority.rpartition("@")
    fields = parse_qsl(parts.query, keep_blank_values=True)
    query = urlencode([(name, value) for name, value in fields if name not in (KEY_FIELD, PASSWORD_FIELD)])
    if file := dict(fields).get(PASSWORD_FIELD):
        login, at = f"{login.partition(':')[0]}:{quote(_read_password(file), safe='')}", "@"
    names = [place.strip() for place in places.split(",")]
    if not all(names) or len(names) > PLACES_MAX:
        raise ConfigError(
            f"a cluster's address needs 1 to {PLACES_MAX} places, each with host and port",
            do="write shoal://user:password@host1:port1,host2:port2",
        )
    urls = tuple(urlunsplit((parts.scheme, f"{login}{at}{name}", parts.path, query, "")) for name in names)
    return ClusterAddress(urls, _pinned_key(dict(fields).get(KEY_FIELD)))


def join_addresses(places: Sequence[Address], key: str) -> str:
    """Return the address of a cluster with several places, which have the same login and TLS, and a pinned key in hex
    ("": none). `split_address` reads it."""
    parts = urlsplit(places[0].url)
    login, at, first = parts.netloc.rpartition("@")
    hosts = ",".join([first, *(urlsplit(place.url).netloc.rpartition("@")[2] for place in places[1:])])
    fields = [*parse_qsl(parts.query), *([(KEY_FIELD, key)] if key else [])]
    return urlunsplit((parts.scheme, f"{login}{at}{hosts}", "", urlencode(fields, safe="/"), ""))


def _read_password(file: str) -> str:
    try:
        return Path(file).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the password in {file} ({error})", do="check the file's name and mode"
        ) from error


def _pinned_key(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"the key in the cluster's address is not {KEY_BYTES} bytes in hexadecimal",
            do="copy it from `shoal plan show --json` (public_key), or leave it out",
        )
    return key
