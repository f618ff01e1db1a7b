"""A store's meter: exact totals in parts for shards, levels, and which queues are asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.load.fold_reader import SETTINGS, T
from tests.load.telemetry_samples import hosts_of, records_to_batch, units_of
from tests.load.telemetry_samples import record as server_record

from shoal.errors import ProtocolError
from shoal.limits import DEFAULT_LIMITS
from shoal.load.costs import used_by_units
from shoal.load.fold import fold
from shoal.load.fold_state import FoldState
from shoal.load.record import decode, encode
from shoal.load.window import LoadWindow
from shoal.load_kinds import KINDS
from shoal.plan.shard_names import read_shard_name, shard_name
from shoal.queues.agent import meter as meter_module
from shoal.queues.agent.meter import QueueLoad, QueueSigns, ShardLoad, StoreMeter, StoreSample, apportion
from shoal.queues.message_format import encode_message, put_us_of
from shoal.queues.queue_state import pack_state

IDLE = ShardLoad(0, 0, 0, 0, 0, 0, 0, 0)


def state(messages: int = 0, *, bytes: int = 0, puts: int = 0, put_bytes: int = 0, dones: int = 0) -> tuple[int, ...]:
    return (9, 9, 9, messages, bytes, 0, 0, 0, 0, 0, 0, 0, 0, 0, puts, put_bytes, dones)


def line(words: tuple[int, ...]) -> QueueSigns:
    return QueueSigns(pack_state((*words, 0, 0)), 2, 1, 0)


def load(words: tuple[int, ...], *shards: ShardLoad, **fields: Any) -> QueueLoad:
    given = {"consumers": 2, "dead": 1, "halted": 0, **fields}
    return QueueLoad(words, shards=dict(enumerate(shards)), **given)


def sample(at_s: float, cpu_s: float = 0.0, file_bytes: int = 0, **fields: Any) -> StoreSample:
    given = {"run_id": "a", "loop_seconds_total": None, "connections": 3, "memory_bytes": 100, "memory_max_bytes": 400}
    return StoreSample(at_s=at_s, cpu_seconds_total=cpu_s, file_bytes=file_bytes, **{**given, **fields})


def rows_of(meter: StoreMeter, at: int, queues: Mapping[bytes, QueueLoad | None]) -> dict[bytes, dict[str, Any]]:
    record = meter.close_second(T + at, T + at + 1.0, sample(float(at), at * 0.25, at * 1000), queues)
    assert decode(encode(record), KINDS).tables["queue"].rows() == record.tables["queue"].rows()
    return record.tables["queue"].rows()


@given(st.integers(0, 10**9), st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_parts_are_whole_and_add_up(total: int, weights: list[float]) -> None:
    parts = apportion(total, weights)
    assert sum(parts) == total
    assert min(parts) >= 0
    if sum(weights) > 1e-9:
        for part, weight in zip(parts, weights, strict=True):
            assert part == pytest.approx(total * weight / sum(weights), abs=1.01 + total * 1e-9)


def test_shards_get_parts_of_the_exact_totals_by_the_samples() -> None:
    meter = StoreMeter("q1", "a")
    first = load(state(puts=100), IDLE._replace(puts=64), IDLE._replace(puts=32))
    assert {row["puts"] for row in rows_of(meter, 0, {b"o": first}).values()} == {0}  # nothing to compare with
    second = load(
        state(40, bytes=4000, puts=200, put_bytes=9000, dones=60), IDLE._replace(puts=112), IDLE._replace(puts=80)
    )
    rows = rows_of(meter, 1, {b"o": second})
    assert [row["puts"] for row in rows.values()] == [50, 50]
    assert [row["dones"] for row in rows.values()] == [30, 30]  # no sample: equal parts
    assert [row["bytes_in"] for row in rows.values()] == [4500, 4500]
    assert sum(row["messages"] for row in rows.values()) == 40
    idle = rows_of(meter, 2, {b"o": None})
    assert [(row["puts"], row["messages"]) for row in idle.values()] == [(0, 20), (0, 20)]
    assert meter.figures[b"o"].puts_total == 200
    again = rows_of(meter, 3, {b"o": load(state(puts=7), IDLE._replace(puts=16), IDLE)})
    assert [row["puts"] for row in again.values()] == [7, 0]  # the queue was made anew


def test_messages_are_estimated_from_ready_keys_and_the_rest_is_in_held_ones() -> None:
    meter = StoreMeter("q1", "a")
    ready = IDLE._replace(ready=10, sampled_keys=5, sampled_messages=15, delayed=4)
    held = IDLE._replace(held=2)
    rows = rows_of(meter, 0, {b"o": load(state(134, bytes=1340), ready, held)})
    assert [row["messages"] for row in rows.values()] == [34, 100]
    assert [row["bytes_stored"] for row in rows.values()] == [340, 1000]


def test_the_oldest_message_is_the_next_one_and_ages_while_nothing_happens() -> None:
    meter = StoreMeter("q1", "a")
    put_us = (T - 9) * 1_000_000
    queue = load(state(1), IDLE._replace(ready=1, sampled_keys=1, sampled_messages=1, next_put_us=put_us))
    assert rows_of(meter, 0, {b"o": queue})[b"o/0"]["oldest_s"] == 10.0
    assert rows_of(meter, 1, {b"o": None})[b"o/0"]["oldest_s"] == 11.0
    assert meter.figures[b"o"].oldest_s == 11.0


@given(st.binary(min_size=1, max_size=40), st.binary(max_size=256), st.integers(0, 2**62), st.binary(max_size=900))
def test_the_time_of_a_message_is_in_its_first_bytes(number: bytes, id: bytes, put_us: int, payload: bytes) -> None:
    body = encode_message(number, id, put_us, payload, None, DEFAULT_LIMITS)
    assert put_us_of(body[:512]) == put_us
    assert put_us_of(body[: 4 + len(number)]) is None


@pytest.mark.parametrize("begin", [b"", b"\x95", b"\x95\xc4", b"hello", b"\x95\xc4\xff\x00"])
def test_bytes_of_no_message_have_no_time(begin: bytes) -> None:
    assert put_us_of(begin) is None


def test_only_queues_with_news_are_asked_and_at_most_so_many_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = StoreMeter("q1", "a")
    queues = {b"a": (0, 1), b"b": (0, 1)}
    words = state(5)
    states = {queue: line(words) for queue in queues}
    assert meter.changed(queues, states) == [b"a", b"b"]
    rows_of(meter, 0, {queue: load(words, IDLE, IDLE) for queue in queues})
    assert meter.changed(queues, states) == []
    clocks = (99, 99, 99, *words[3:])
    assert meter.changed(queues, {b"a": line(clocks), b"b": line(state(6))}) == [b"b"]
    assert meter.changed({**queues, b"a": (0,)}, states) == [b"a"]
    monkeypatch.setattr(meter_module, "SHARDS_A_SECOND_MAX", 3)
    assert meter.changed(queues, {queue: line(state(7)) for queue in queues}) == [b"a"]
    record = meter.close_second(T, T + 1.0, sample(1.0), dict.fromkeys(queues))
    assert record.host["uncounted"] == 1


def test_a_store_has_rates_from_its_second_record_on_and_again_after_a_restart() -> None:
    meter = StoreMeter("q1", "a")

    def host(now: StoreSample) -> Mapping[str, Any]:
        return meter.close_second(T, T + 1.0, now, {}).host

    names = ("interval_s", "busy_share", "cpu_share", "written_bytes_per_s")
    assert [host(sample(1.0))[name] for name in names] == [None] * 4
    row = host(sample(3.0, 0.5, 4000))
    assert [row[name] for name in names] == [2.0, 0.25, 0.25, 2000.0]
    assert host(sample(4.0, 0.6, 100))["written_bytes_per_s"] is None  # the file was rewritten
    assert host(sample(5.0, 0.0, run_id="b"))["cpu_share"] is None
    host(sample(6.0, 0.1, run_id="b", loop_seconds_total=1.0))
    assert host(sample(7.0, 0.2, run_id="b", loop_seconds_total=1.9))["busy_share"] == pytest.approx(0.9)


def test_replies_that_cannot_be_read_are_refused() -> None:
    good = [" ".join(map(str, state(3))).encode(), 1, 0, 0, [1, 0, 0, b"16", b"0", 3, 1, b""]]
    assert QueueLoad.read(good, [4]).shards[4] == ShardLoad(1, 0, 0, 16, 0, 3, 1, 0)
    for bad in (None, [], good[:4], [b"1 2", *good[1:]], [*good[:4], [1]], [*good, good[-1]]):
        with pytest.raises(ProtocolError):
            QueueLoad.read(bad, [4])
    with pytest.raises(ProtocolError, match="INFO"):
        StoreSample.from_info(b"run_id:x\r\n", 1.0)


def test_names_of_shards() -> None:
    assert read_shard_name(shard_name(b"orders.eu", 12)) == (b"orders.eu", 12)
    assert read_shard_name(b"orders") is read_shard_name(b"/1") is read_shard_name(b"a/x") is None


def test_shards_are_folded_and_priced_beside_channels() -> None:
    meter = StoreMeter("q1", "a", "hall")
    made = [server_record("s1", second, {}) for second in (T, T + 1)]
    for at in range(3):
        busy = load(state(puts=400 * at, dones=200 * at), IDLE._replace(puts=320 * at), IDLE._replace(puts=80 * at))
        record = meter.close_second(T + at - 1, T + at, sample(float(at), at * 0.5), {b"o": busy})
        made += [record] if at else []
    batch = records_to_batch((each, T + 2.1) for each in made)
    (window,), _ = fold(FoldState(), batch, T + 9.0, SETTINGS, KINDS)
    shards = units_of(window)
    assert (shards["q1", b"o/0"]["puts"], shards["q1", b"o/1"]["puts"]) == (320.0, 80.0)
    assert hosts_of(window)["q1"]["busy_share"] == 0.5
    used = used_by_units(window, "queue", KINDS)["busy_share"].tolist()
    assert used == pytest.approx([0.5 * (320 * 3 + 100 * 2) / 1600, 0.5 * (80 * 3 + 100 * 2) / 1600])
    assert LoadWindow.from_bytes(window.to_bytes(), KINDS) == window
