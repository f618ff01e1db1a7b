"""The pattern language, compared with a real Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.sim.real_redis import RealClient
from tests.support.redis_server import RedisServer

from shoal.wire.glob import glob_match

PATTERN = st.lists(
    st.sampled_from([b"*", b"?", b"[", b"]", b"^", b"-", b"\\", b"a", b"b", b"c", b"z", b"\0", b"\x80", b"\xff"]),
    max_size=9,
).map(b"".join)
STRING = st.lists(
    st.sampled_from([b"a", b"b", b"c", b"z", b"-", b"^", b"]", b"[", b"\\", b"*", b"\0", b"\x80", b"\xff"]),
    max_size=6,
).map(b"".join)


@pytest.fixture(scope="module")
def client() -> Iterator[RealClient]:
    with RedisServer() as server:
        client = RealClient(server.port)
        client.call(b"HELLO", b"3")
        yield client
        client.quit()


def real_matches(client: RealClient, pattern: bytes, strings: list[bytes]) -> list[bool]:
    publishes = [(b"PUBLISH", string, b"") for string in strings]
    client.send((b"PSUBSCRIBE", pattern), *publishes, (b"PUNSUBSCRIBE", pattern))
    frames, _ = client.frames_until_fence()
    return [frame == 1 for frame in frames if isinstance(frame, int)]


@given(pattern=PATTERN, strings=st.lists(STRING, min_size=1, max_size=25))
@settings(max_examples=600, deadline=None)
def test_matches_what_redis_matches(client: RealClient, pattern: bytes, strings: list[bytes]) -> None:
    ours = [glob_match(pattern, string) for string in strings]
    assert ours == real_matches(client, pattern, strings)


@pytest.mark.parametrize(
    "pattern",
    [
        b"[",
        b"[^",
        b"[]",
        b"[^]",
        b"[a",
        b"[a-",
        b"[\\",
        b"[\\]]",
        b"[z-a]",
        b"[a-\xff]",
        b"\\",
        b"a\\",
        b"**",
        b"*?*",
    ],
)
def test_every_single_byte(client: RealClient, pattern: bytes) -> None:
    strings = [b"", *(bytes([value]) for value in range(256)), b"ab", b"\\a"]
    ours = [glob_match(pattern, string) for string in strings]
    assert ours == real_matches(client, pattern, strings)


@pytest.mark.parametrize("stars", [999, 1000, 1001, 1500])
def test_gives_up_at_the_same_number_of_stars(client: RealClient, stars: int) -> None:
    string = b"a" * 3000
    for pattern in (b"a*" * stars, b"*a" * stars):
        assert [glob_match(pattern, string)] == real_matches(client, pattern, [string])


def test_a_hostile_pattern_ends() -> None:
    """A backtracking matcher would exceed the time limit of the test."""
    assert not glob_match(b"a*" * 60 + b"b", b"a" * 5000)
