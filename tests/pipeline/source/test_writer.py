"""Writing to channels: what options mean. What comes of it on a real Spark is in `test_source`."""

from __future__ import annotations

import pytest

from shoal.coordination.link import parse_address
from shoal.errors import ConfigError
from shoal.pipeline.source.writer import Publishing

SCHEMA = pytest.importorskip("pyspark.sql.types").StructType().add("payload", "string")


@pytest.mark.parametrize(
    ("address", "given", "login"),
    [
        ("shoal://host:7400", {"user": "me", "password": "p@ss/:w"}, ("me", "p@ss/:w")),
        ("shoal://other:old@host:7400", {"user": "me", "password": "new"}, ("me", "new")),
        ("shoal://other:old@host:7400", {"password": "new"}, ("other", "new")),
        ("shoal://other:old@host:7400", {}, ("other", "old")),
        ("shoal://[::1]:7400", {"password": "new"}, (None, "new")),
    ],
)
def test_the_log_in_is_the_one_of_the_options(
    address: str, given: dict[str, str], login: tuple[str | None, str]
) -> None:
    publishing = Publishing.of({"coordinator": address, "channel": "c", **given}, SCHEMA)
    found = parse_address(publishing.url, None, None)
    assert (found.username, found.password) == login
    assert str(found) == str(parse_address(address, None, None))
    assert login[1] not in repr(publishing)


def test_servers_cannot_be_written_to() -> None:
    with pytest.raises(ConfigError, match="name a coordinator"):
        Publishing.of({"servers": "s1=a:1", "channel": "c"}, SCHEMA)
