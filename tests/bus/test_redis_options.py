"""The options of the redis-py surface: keywords, URLs, and names of redis-py that a cluster does not have."""

from __future__ import annotations

from typing import Any

import pytest
from redis import asyncio as redis_py
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

import shoal.redis as redis
from shoal.redis.options import read_url, with_login, without_retries

URL = "shoal://client:secret@host:7400"


@pytest.mark.parametrize(
    ("url", "address", "options"),
    [
        (URL, URL, {}),
        (f"{URL}/0", URL, {"db": "0"}),
        (f"{URL}?decode_responses=True", URL, {"decode_responses": True}),
        (f"{URL}?decode_responses=no&socket_timeout=1.5", URL, {"decode_responses": False, "socket_timeout": 1.5}),
        (f"{URL}?encoding=latin-1&db=0", URL, {"encoding": "latin-1", "db": 0}),
        (f"{URL},other:7401?cluster_key=ab&protocol=3", f"{URL},other:7401?cluster_key=ab", {"protocol": 3}),
        (
            "shoals://h:1?ca=/etc/ca.pem&health_check_interval=5",
            "shoals://h:1?ca=/etc/ca.pem",
            {"health_check_interval": 5},
        ),
    ],
)
def test_a_url_is_an_address_and_options(url: str, address: str, options: dict[str, Any]) -> None:
    assert read_url(url) == (address, options)


@pytest.mark.parametrize("url", ["", "host:7400", "redis://host:6379", "shoal://", "unix:///tmp/socket"])
def test_other_urls_are_rejected(url: str) -> None:
    with pytest.raises(ValueError, match="write shoal://"):
        redis.from_url(url)


def test_a_rejected_url_does_not_show_its_password() -> None:
    with pytest.raises(ValueError, match="host:6379") as caught:
        redis.from_url("redis://user:secret@host:6379")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("option", ["socket_timeout=soon", "db=first", "health_check_interval=x"])
def test_values_of_the_wrong_type_are_rejected(option: str) -> None:
    with pytest.raises(ValueError, match=option.partition("=")[0]):
        redis.from_url(f"{URL}?{option}")


@pytest.mark.parametrize(
    ("url", "names"),
    [
        (f"{URL}?nonsense=1", "nonsense"),
        (f"{URL}?decode_response=1", "did you mean 'decode_responses'"),
        (f"{URL}/3", "database 3"),
        (f"{URL}/x", "database x"),
        (f"{URL}?db=1", "database 1"),
        (f"{URL}?unix_socket_path=/x", "unix_socket_path"),
    ],
)
def test_options_without_a_meaning_are_rejected(url: str, names: str) -> None:
    with pytest.raises(TypeError, match=names):
        redis.from_url(url)


def test_options_in_the_url_win_over_keywords() -> None:
    assert redis.from_url(f"{URL}?decode_responses=yes", decode_responses=False).get_encoder().decode_responses
    assert redis.from_url(URL, decode_responses=True).get_encoder().decode_responses
    with pytest.raises(TypeError, match="from_url"):
        redis.Redis(url=f"{URL}?decode_responses=yes")


def test_a_login_in_keywords_is_used_if_the_url_has_none() -> None:
    assert with_login("shoal://host:1", "me", "a/b") == "shoal://me:a%2Fb@host:1"
    assert with_login("shoal://host:1", None, "b") == "shoal://client:b@host:1"
    assert with_login("shoal://host:1?cluster_key=a@b", None, None) == "shoal://host:1?cluster_key=a@b"
    assert with_login(URL, "me", "other") == URL


@pytest.mark.parametrize(
    "keywords",
    [
        {"db": 1},
        {"ssl": True},
        {"unix_socket_path": "/x"},
        {"password": "x"},
        {"connection_pool": object()},
        {"host": "h", "ssl": True, "ssl_cert_reqs": "none"},
        {"ssl_ca_certs": "/x"},
        {"nonsense": None},
    ],
)
def test_keywords_without_a_meaning_are_rejected(keywords: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        redis.Redis(**keywords)


def test_default_values_of_all_keywords_of_redis_py_are_accepted() -> None:
    from shoal.redis.options import _KNOWN

    defaults = {name: known.default for name, known in _KNOWN.items() if name not in ("self", "host", "port")}
    redis.Redis(**defaults)
    nothing: dict[str, Any] = dict.fromkeys(set(defaults) - {"encoding", "encoding_errors"})
    redis.Redis(**nothing)
    redis.Redis().pubsub(shard_hint=None, event_dispatcher=None, push_handler_func=None)


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({}, False),
        ({"retry": Retry(NoBackoff(), 3)}, False),
        ({"retry": Retry(NoBackoff(), 0)}, True),
        ({"retry": None}, True),
        ({"retry": None, "retry_on_timeout": True}, False),
        ({"retry": None, "retry_on_error": [OSError]}, False),
    ],
)
def test_retries_can_be_switched_off(keywords: dict[str, Any], expected: bool) -> None:
    """Compared with the number of retries of redis-py's own connection."""
    assert without_retries(keywords) is expected
    if keywords:
        connection = redis_py.Connection(**keywords)
        assert (connection.retry._retries == 0) is expected


def test_timeouts_default_to_redis_pys() -> None:
    from redis._defaults import DEFAULT_SOCKET_CONNECT_TIMEOUT, DEFAULT_SOCKET_TIMEOUT

    deadlines = redis.Redis()._deadlines
    assert (deadlines.answer.seconds, deadlines.connect_s) == (DEFAULT_SOCKET_TIMEOUT, DEFAULT_SOCKET_CONNECT_TIMEOUT)
    given = redis.from_url(f"{URL}?socket_timeout=1&socket_connect_timeout=2")._deadlines
    assert (given.answer.seconds, given.connect_s, given.opening.seconds) == (1.0, 2.0, 3.0)


@pytest.mark.parametrize("command", ["set", "get", "pipeline", "execute_command", "client_list", "connection_pool"])
def test_a_command_that_is_missing_is_explained(command: str) -> None:
    client = redis.Redis()
    with pytest.raises(AttributeError, match=f"no '{command}': .*docs/redis-surface.md"):
        getattr(client, command)
    assert not hasattr(client, command)


@pytest.mark.parametrize("name", ["ConnectionPool", "BlockingConnectionPool", "Sentinel", "RedisCluster"])
def test_a_name_that_is_missing_is_explained(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no '{name}': .*docs/redis-surface.md"):
        getattr(redis, name)


def test_a_name_that_redis_py_has_not_is_an_ordinary_error() -> None:
    for owner in (redis, redis.Redis(), redis.Redis().pubsub()):
        with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
            owner.nonsense  # type: ignore[union-attr]  # noqa: B018


def test_exceptions_are_redis_pys() -> None:
    names = [name for name in redis_py.__all__ if isinstance(getattr(redis_py, name), type)]
    errors = [name for name in names if issubclass(getattr(redis_py, name), Exception)]
    assert "WatchError" in errors
    for name in errors:
        assert getattr(redis, name) is getattr(redis_py, name)
    assert redis.StrictRedis is redis.Redis


def test_a_subscription_is_redis_pys() -> None:
    given: object = redis.Subscription("name")
    assert isinstance(given, redis_py.Subscription)


def test_a_client_of_a_client_has_its_options_and_connections_of_its_own() -> None:
    first = redis.from_url(f"{URL}?socket_timeout=1&decode_responses=True")
    other = first.client()
    assert other is not first
    assert other.get_encoder() is first.get_encoder()
    assert (other._url, other._deadlines.answer.seconds) == (first._url, 1.0)
    assert other._buses is not first._buses
