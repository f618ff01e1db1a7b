"""The address of a cluster: one login, several places, and perhaps the cluster's key."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.bus.addresses import PLACES_MAX, split_address
from shoal.errors import ConfigError

KEY = "ab" * 32


@pytest.mark.parametrize(
    ("url", "urls"),
    [
        ("shoal://h1:7400", ["shoal://h1:7400"]),
        ("h1:7400", ["shoal://h1:7400"]),
        ("shoal://h1:7400,h2:7401", ["shoal://h1:7400", "shoal://h2:7401"]),
        ("shoal://u:p%40x@h1:1,[::1]:2", ["shoal://u:p%40x@h1:1", "shoal://u:p%40x@[::1]:2"]),
        ("shoal://u:p@h1:1,h2:2?tls=yes", ["shoal://u:p@h1:1?tls=yes", "shoal://u:p@h2:2?tls=yes"]),
    ],
)
def test_an_address_is_split_into_one_for_each_place(url: str, urls: list[str]) -> None:
    assert split_address(url).urls == tuple(urls)
    assert split_address(url).key is None


def test_the_key_is_taken_out_of_the_address() -> None:
    found = split_address(f"shoal://u:p@h1:1,h2:2?cluster_key={KEY}&tls=yes")
    assert found.urls == ("shoal://u:p@h1:1?tls=yes", "shoal://u:p@h2:2?tls=yes")
    assert found.key == bytes.fromhex(KEY)


def test_a_password_is_read_from_its_file_each_time(tmp_path: Path) -> None:
    file = tmp_path / "password"
    for password, shown in (("first", "first"), ("se@ond\n", "se%40ond")):
        file.write_text(password)
        found = split_address(f"shoal://client@h1:1,h2:2?password_file={file}")
        assert found.urls == (f"shoal://client:{shown}@h1:1", f"shoal://client:{shown}@h2:2")
    with pytest.raises(ConfigError, match="cannot read the password"):
        split_address(f"shoal://client@h1:1?password_file={tmp_path / 'none'}")


@pytest.mark.parametrize(
    "url",
    [
        *(
            "shoal://h1:1,",
            "shoal://,h1:1",
            "shoal://",
            "shoal://h:1?cluster_key=ab",
            "shoal://h:1?cluster_key=zz",
            "shoal://h:1?cluster_key=",
        ),
        "shoal://" + ",".join(f"h:{port}" for port in range(1, PLACES_MAX + 2)),
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split_address(url)
    assert caught.value.do
