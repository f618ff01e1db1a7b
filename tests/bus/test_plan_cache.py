"""The cached plan: a private file, checked when it is read, and no error of the application's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.bus.plan_cache import FILES_MAX, PlanCache
from shoal.errors import ForgedEntryError
from shoal.plan.plan_copy import decode_copy, encode_copy
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signature import Signer

SIGNER = Signer(Signer.generate())
RING = SIGNER.ring(Ring(3, (ServerAddress("s1", "127.0.0.1", 1),)))


def test_what_was_written_is_read_by_its_owner_only(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path / "new", "client@h:1")
    assert cache.read() is None
    cache.write(SIGNER.public, RING)
    copy = cache.read()
    assert copy is not None
    assert (copy.key, copy.ring) == (SIGNER.public, RING)
    assert cache.path.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in cache.path.parent.iterdir()] == [cache.path.name]


def test_clusters_and_users_have_files_of_their_own(tmp_path: Path) -> None:
    names = {PlanCache(tmp_path, identity).path for identity in ("client@h:1", "client@h:2", "other@h:1")}
    assert len(names) == 3


@pytest.mark.parametrize(
    "damage",
    [b"", b"\xc1", encode_copy(SIGNER.public, RING[:-1]), b"\x93\x09\xc4\x00\xc4\x00"],
    ids=["empty", "not a copy", "cut", "another format"],
)
def test_a_damaged_file_counts_as_none(tmp_path: Path, damage: bytes) -> None:
    cache = PlanCache(tmp_path, "client@h:1")
    cache.path.write_bytes(damage)
    assert cache.read() is None


def test_the_oldest_files_are_removed(tmp_path: Path) -> None:
    first = PlanCache(tmp_path, "first")
    first.write(SIGNER.public, RING)
    os.utime(first.path, (1, 1))
    for number in range(FILES_MAX):
        PlanCache(tmp_path, f"client@h:{number}").write(SIGNER.public, RING)
    assert first.read() is None
    assert len(list(tmp_path.iterdir())) == FILES_MAX


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    PlanCache(tmp_path / "file", "client@h:1").write(SIGNER.public, RING)


def test_a_ring_that_another_key_signed_is_no_copy() -> None:
    stranger = Signer(Signer.generate())
    with pytest.raises(ForgedEntryError):
        decode_copy(encode_copy(stranger.public, RING))
