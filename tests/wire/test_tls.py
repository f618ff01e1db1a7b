"""TLS settings and files: settings come from the address and the environment, files are read again when they change.
There is an error for each file that is unusable."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from tests.support.tls_files import TlsFiles

from shoal.coordination.link import Address, parse_address
from shoal.errors import ConfigError, TlsError
from shoal.metrics import REGISTRY
from shoal.wire.tls import TlsSettings, client_context


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


# -- settings ----------------------------------------------------------------------------------------------------------


def parse(url: str, **environ: str) -> Address:
    return parse_address(url, None, None, environ)


def test_the_address_asks_for_tls_and_names_the_files() -> None:
    address = parse("shoals://client:secret@host:7400?ca=/a/ca.pem&cert=/a/c.pem&key=/a/c.key&server_name=s1")
    assert address.tls == TlsSettings("/a/ca.pem", "/a/c.pem", "/a/c.key", "s1")
    assert parse("shoal://host:7400?tls=yes").tls == parse("shoals://host:7400").tls == TlsSettings()
    assert parse("shoal://host:7400").tls is None
    assert parse("shoal://host:7400?tls=no").tls is None


def test_servers_are_verified_unless_the_address_says_otherwise() -> None:
    assert parse("shoals://host:1").tls == TlsSettings(verify=True)
    assert parse("shoals://host:1?verify=no").tls == TlsSettings(verify=False)


def test_the_environment_completes_the_address() -> None:
    environ = {"SHOAL_TLS_CA": "/e/ca.pem", "SHOAL_TLS_CERT": "/e/c.pem", "SHOAL_TLS_KEY": "/e/c.key"}
    assert parse("shoals://host:1", **environ).tls == TlsSettings("/e/ca.pem", "/e/c.pem", "/e/c.key")
    assert parse("shoals://host:1?ca=/a/ca.pem", **environ).tls == TlsSettings("/a/ca.pem", "/e/c.pem", "/e/c.key")
    assert parse("shoal://host:1", **environ).tls is None


def test_a_key_from_the_environment_is_not_used_for_another_certificate() -> None:
    environ = {"SHOAL_TLS_CERT": "/e/c.pem", "SHOAL_TLS_KEY": "/e/c.key"}
    assert parse("shoals://host:1?cert=/a/both.pem", **environ).tls == TlsSettings(cert="/a/both.pem")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("shoals://host:1?tls=no", "write shoal://"),
        ("shoal://host:1?ca=/a/ca.pem", "write shoals://"),
        ("shoals://host:1?cafile=x", "unknown option 'cafile'.*options are tls, ca"),
        ("shoals://host:1?verify=maybe", "write yes or no"),
        ("shoals://host:1?key=/a/c.key", "has no certificate"),
    ],
)
def test_addresses_that_contradict_themselves_are_refused(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse(url)


@pytest.mark.parametrize("tls", [None, TlsSettings(), TlsSettings("/a b/ca.pem", "/c&d.pem", "/k", "s1", verify=False)])
def test_an_address_survives_its_url(tls: TlsSettings | None) -> None:
    address = Address("::1", 7400, "client", "p@ss/word?", tls)
    assert parse(address.url) == address


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"ca": "missing.pem"}, "cannot read the TLS file .*missing.pem: no such file"),
        ({"ca": "ca.key"}, "ca.key is not a file of certificates"),
        ({"cert": "missing.pem"}, "cannot read the TLS file .*missing.pem: no such file"),
        ({"cert": "ca.pem"}, "no certificate with its key"),
        ({"key": "server.pem"}, "the key does not fit the certificate"),
    ],
)
def test_an_unusable_file_is_named(broken: dict[str, str], why: str, shared: TlsFiles) -> None:
    paths = {name: str(shared.folder / path) for name, path in broken.items()}
    with pytest.raises(TlsError, match=why):
        client_context(msgspec.structs.replace(shared.settings(), **paths))


def test_changed_files_are_read_again(files: TlsFiles) -> None:
    first = client_context(files.settings())
    assert client_context(files.settings()) is first
    files.authority.issue("client", server=False, client=True)
    assert client_context(files.settings()) is not first


def test_while_files_are_being_replaced_the_last_ones_are_used(files: TlsFiles) -> None:
    first = client_context(files.settings())
    os.truncate(files.settings().cert, 10)
    assert client_context(files.settings()) is first
    files.authority.issue("client", server=False, client=True)
    assert client_context(files.settings()) is not first


def test_the_expiry_of_the_files_is_a_metric(files: TlsFiles) -> None:
    client_context(files.settings())
    shown = REGISTRY.get_sample_value("shoal_tls_expiry_timestamp_seconds", {"file": files.settings().ca})
    assert shown == files.authority.expires_at
