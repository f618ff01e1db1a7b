"""The coordinator's contract, part 1: keys, limits, watches, crashes of the store."""

from __future__ import annotations

import asyncio

import pytest
from tests.coordination.contract_support import Factory, Follower, Store, held

from shoal.coordination import names
from shoal.coordination.interface import Coordinator, Versioned
from shoal.errors import ConflictError, CoordinatorError, CoordinatorUnavailableError


class KeysContract:
    """Versioned keys and their watches."""

    # -- Keys ------------------------------------------------------------------------------------------------

    async def test_a_key_that_was_never_written_is_none(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        assert await coordinator.get("plan/ring") is None

    async def test_several_keys_are_got_in_their_order(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        ring = await coordinator.put("plan/ring", b"ring")
        mark = await coordinator.put("pool/s1", b"mark")
        found = await coordinator.get_all(("pool/s1", "plan/key", "plan/ring", "pool/s1"))
        assert found == [Versioned(b"mark", mark), None, Versioned(b"ring", ring), Versioned(b"mark", mark)]
        assert await coordinator.get_all(()) == []
        with pytest.raises(CoordinatorError, match="key"):
            await coordinator.get_all(("plan/ring", "no area"))

    async def test_what_is_put_is_got_by_everybody(self, coordinator_factory: Factory) -> None:
        one, other = await coordinator_factory(), await coordinator_factory()
        version = await one.put("plan/ring", b"\x00\xffbytes")
        assert await other.get("plan/ring") == Versioned(b"\x00\xffbytes", version)

    async def test_an_empty_value_is_a_value(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        version = await coordinator.put("plan/ring", b"")
        assert await coordinator.get("plan/ring") == Versioned(b"", version)

    async def test_versions_grow_also_over_a_delete(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        first = await coordinator.put("plan/ring", b"a")
        second = await coordinator.put("plan/ring", b"b")
        await coordinator.delete("plan/ring")
        third = await coordinator.put("plan/ring", b"a")
        assert 0 < first < second < third

    async def test_expect_lets_only_the_right_version_pass(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        version = await coordinator.put("plan/ring", b"a", expect=0)
        with pytest.raises(ConflictError, match="plan/ring"):
            await coordinator.put("plan/ring", b"b", expect=0)
        with pytest.raises(ConflictError, match=f"version {version}"):
            await coordinator.put("plan/ring", b"b", expect=version + 1)
        newer = await coordinator.put("plan/ring", b"b", expect=version)
        assert await coordinator.get("plan/ring") == Versioned(b"b", newer)

    async def test_expect_of_a_missing_key_conflicts(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        with pytest.raises(ConflictError, match="does not exist"):
            await coordinator.put("plan/ring", b"a", expect=7)
        assert await coordinator.get("plan/ring") is None

    async def test_delete_compares_and_is_quiet_without_expect(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        await coordinator.delete("plan/ring")
        version = await coordinator.put("plan/ring", b"a")
        with pytest.raises(ConflictError):
            await coordinator.delete("plan/ring", expect=version + 1)
        await coordinator.delete("plan/ring", expect=version)
        assert await coordinator.get("plan/ring") is None
        with pytest.raises(ConflictError):
            await coordinator.delete("plan/ring", expect=version)

    async def test_of_many_writers_with_one_expectation_one_wins(self, coordinator_factory: Factory) -> None:
        writers = [await coordinator_factory() for _ in range(4)]
        version = await writers[0].put("plan/ring", b"start")

        async def write(number: int) -> int | None:
            try:
                return await writers[number % 4].put("plan/ring", b"%d" % number, expect=version)
            except ConflictError:
                return None

        results = await asyncio.gather(*(write(number) for number in range(12)))
        (winner,) = [number for number, result in enumerate(results) if result is not None]
        assert await writers[0].get("plan/ring") == Versioned(b"%d" % winner, results[winner] or 0)

    async def test_compare_loops_lose_no_increment(self, coordinator_factory: Factory) -> None:
        writers = [await coordinator_factory() for _ in range(3)]

        async def add(coordinator: Coordinator, times: int) -> None:
            while times:
                now = await coordinator.get("plan/count")
                count, version = (int(now.value), now.version) if now else (0, 0)
                try:
                    await coordinator.put("plan/count", b"%d" % (count + 1), expect=version)
                except ConflictError:
                    continue
                times -= 1

        await asyncio.gather(*(add(writer, 10) for writer in writers))
        now = await writers[0].get("plan/count")
        assert now is not None
        assert now.value == b"30"

    async def test_list_sees_exactly_the_prefix(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        for key in (
            "plan/entries/a",
            "plan/entries/b:ü *?[",
            "plan/entriesX",
            "plan/ring",
            "planet/entries/a",
        ):
            await coordinator.put(key, key.encode())
        await coordinator.delete("plan/ring")
        assert {key: now.value for key, now in (await coordinator.list("plan/entries/")).items()} == {
            "plan/entries/a": b"plan/entries/a",
            "plan/entries/b:ü *?[": "plan/entries/b:ü *?[".encode(),
        }
        assert set(await coordinator.list("plan/")) == {
            "plan/entries/a",
            "plan/entries/b:ü *?[",
            "plan/entriesX",
        }
        assert await coordinator.list("other/") == {}

    async def test_list_is_a_state_that_really_was(self, coordinator_factory: Factory) -> None:
        """One writer keeps two keys one step apart; a listing that mixed two moments would show a larger distance."""
        writer, reader = await coordinator_factory(), await coordinator_factory()

        async def write() -> None:
            for step in range(60):
                await writer.put("plan/a", b"%d" % step)
                await writer.put("plan/b", b"%d" % step)

        writing = asyncio.create_task(write())
        seen = 0
        while not writing.done():
            state = {key: int(now.value) for key, now in (await reader.list("plan/")).items()}
            if len(state) == 2:
                assert state["plan/a"] - state["plan/b"] in (0, 1)
                seen += 1
        await writing
        assert seen

    # -- Limits ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "key", ["", "ring", "/ring", "plan/", "@lease/x", "pl an/x", "plan/\ud800", "plan/" + "x" * 1024]
    )
    async def test_a_bad_key_is_refused_with_a_reason(self, coordinator_factory: Factory, key: str) -> None:
        coordinator = await coordinator_factory()
        for attempt in (coordinator.get(key), coordinator.put(key, b""), coordinator.delete(key)):
            with pytest.raises(CoordinatorError, match="key"):
                await attempt

    async def test_sizes_times_and_numbers_have_limits(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        with pytest.raises(CoordinatorError, match=f"limit is {names.VALUE_BYTES_MAX}"):
            await coordinator.put("plan/ring", bytes(names.VALUE_BYTES_MAX + 1))
        with pytest.raises(CoordinatorError, match=f"limit is {names.MEMBER_DATA_BYTES_MAX}"):
            await coordinator.join("servers", "7", bytes(names.MEMBER_DATA_BYTES_MAX + 1), 1.0)
        for ttl_s in (0.0, -1.0, float("nan"), float("inf")):
            with pytest.raises(CoordinatorError, match="ttl_s"):
                await coordinator.acquire("servers/7", "me", ttl_s)
        with pytest.raises(CoordinatorError, match="parties"):
            coordinator.barrier("b", "me", 0)
        with pytest.raises(CoordinatorError, match="prefix"):
            await coordinator.list("plan")
        with pytest.raises(CoordinatorError, match="prefix"):
            coordinator.watch("")
        with pytest.raises(CoordinatorError, match="group"):
            await coordinator.members("a/b")
        await coordinator.put("plan/ring", bytes(names.VALUE_BYTES_MAX))

    # -- Watches ---------------------------------------------------------------------------------------------

    async def test_a_watch_starts_with_the_state_and_follows_it(self, coordinator_factory: Factory) -> None:
        writer, reader = await coordinator_factory(), await coordinator_factory()
        await writer.put("plan/a", b"1")
        await writer.put("other/a", b"1")
        follower = Follower(reader, "plan/")
        await follower.until({"plan/a": b"1"})
        await writer.put("plan/b", b"2")
        await follower.until({"plan/a": b"1", "plan/b": b"2"})
        await writer.put("plan/a", b"3")
        await writer.delete("plan/b")
        await follower.until({"plan/a": b"3"})
        await writer.put("plan/b", b"4")
        await follower.until({"plan/a": b"3", "plan/b": b"4"})
        assert {change.key for change in follower.changes} == {"plan/a", "plan/b"}
        await follower.stop()

    async def test_a_watch_never_goes_back_and_ends_with_the_last_state(self, coordinator_factory: Factory) -> None:
        writer, reader = await coordinator_factory(), await coordinator_factory()
        followers = [Follower(reader, "plan/") for _ in range(3)]
        for number in range(100):
            await writer.put(f"plan/{number % 5}", b"%d" % number)
        last = {f"plan/{number % 5}": b"%d" % number for number in range(95, 100)}
        for follower in followers:
            await follower.until(last)
            for key in last:
                versions = [change.now.version for change in follower.changes if change.key == key and change.now]
                assert versions == sorted(set(versions))
            await follower.stop()

    async def test_a_watch_survives_a_crash_and_misses_nothing_last(
        self, coordinator_factory: Factory, store: Store
    ) -> None:
        writer, reader = await coordinator_factory(), await coordinator_factory()
        await writer.put("plan/a", b"before")
        await writer.put("plan/b", b"before")
        follower = Follower(reader, "plan/")
        await follower.until({"plan/a": b"before", "plan/b": b"before"})
        for round_ in range(3):
            await asyncio.to_thread(store.kill)
            await asyncio.to_thread(store.restart)
            await writer.put("plan/a", b"after %d" % round_)
            await writer.delete("plan/b")
            await follower.until({"plan/a": b"after %d" % round_})
            await writer.put("plan/b", b"again")
            await follower.until({"plan/a": b"after %d" % round_, "plan/b": b"again"})
        await follower.stop()

    async def test_a_watch_begun_while_the_store_is_down_waits_for_it(
        self, coordinator_factory: Factory, store: Store
    ) -> None:
        coordinator = await coordinator_factory()
        await coordinator.put("plan/a", b"1")
        await asyncio.to_thread(store.kill)
        follower = Follower(coordinator, "plan/")
        await asyncio.sleep(0.05)
        await asyncio.to_thread(store.restart)
        await follower.until({"plan/a": b"1"})
        await follower.stop()

    async def test_closing_ends_watches_and_refuses_the_rest(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        await coordinator.put("plan/a", b"1")
        follower = Follower(coordinator, "plan/")
        await follower.until({"plan/a": b"1"})
        await coordinator.close()
        await follower.ended()
        with pytest.raises(CoordinatorError, match="closed"):
            await coordinator.get("plan/a")
        await coordinator.close()

    async def test_a_watch_that_is_busy_ends_quietly_too(self, coordinator_factory: Factory) -> None:
        writer = await coordinator_factory()
        for delay_s in (0.0, 0.001, 0.003, 0.01, 0.02):
            reader = await coordinator_factory()
            followers = [Follower(reader, "plan/") for _ in range(5)]
            for number in range(5):
                await writer.put("plan/a", b"%d" % number)
            await asyncio.sleep(delay_s)
            await reader.close()
            for follower in followers:
                await follower.ended()

    # -- Crashes ---------------------------------------------------------------------------------------------

    async def test_what_returned_survives_a_crash(self, coordinator_factory: Factory, store: Store) -> None:
        coordinator = await coordinator_factory()
        version = await coordinator.put("plan/ring", b"kept")
        lease = await held(coordinator.acquire("servers/7", "me", 60.0))
        await coordinator.join("servers", "7", b"address", 60.0)
        await asyncio.to_thread(store.kill)
        await asyncio.to_thread(store.restart)
        assert await coordinator.get("plan/ring") == Versioned(b"kept", version)
        assert await coordinator.renew(lease)
        assert await coordinator.acquire("servers/7", "other", 60.0) is None
        assert await coordinator.members("servers") == {"7": b"address"}
        assert await coordinator.put("plan/ring", b"newer", expect=version) > version

    async def test_writes_through_crashes_are_applied_once(self, coordinator_factory: Factory, store: Store) -> None:
        """Each step compares with the previous one: a step that was lost or applied twice would end in a conflict."""
        coordinator = await coordinator_factory()
        stop = asyncio.Event()

        async def crash() -> None:
            for _ in range(4):
                await asyncio.sleep(0.03)
                await asyncio.to_thread(store.kill)
                await asyncio.to_thread(store.restart)
            stop.set()

        crashing = asyncio.create_task(crash())
        steps = version = 0
        while not stop.is_set():
            version = await coordinator.put("plan/step", b"%d" % steps, expect=version)
            steps += 1
        await crashing
        assert await coordinator.get("plan/step") == Versioned(b"%d" % (steps - 1), version)

    async def test_a_store_that_stays_down_is_reported_with_what_to_do(
        self, coordinator_factory: Factory, store: Store
    ) -> None:
        coordinator = await coordinator_factory()
        await asyncio.to_thread(store.kill)
        with pytest.raises(CoordinatorUnavailableError, match=r"cannot read plan/ring.*check that"):
            await coordinator.get("plan/ring")
        await asyncio.to_thread(store.restart)
        assert await coordinator.get("plan/ring") is None
