"""The coordinator's contract, part 3: batches of writes."""

from __future__ import annotations

import asyncio

import pytest
from tests.coordination.contract_support import PATIENCE_S, Factory, Follower, Store, held

from shoal.coordination import names
from shoal.coordination.interface import Coordinator, KeyWrite, Lease, Versioned
from shoal.errors import ConflictError, CoordinatorError, LeaseLostError

MANY = 450
"""More writes than an implementation is likely to send in one transaction."""


def puts(count: int, value: bytes = b"1", expect: int | None = None) -> list[KeyWrite]:
    return [KeyWrite(f"plan/{number}", value, expect) for number in range(count)]


async def versions(coordinator: Coordinator, writes: list[KeyWrite]) -> list[int]:
    """Return the versions of writes that must all succeed."""
    outcomes = await coordinator.write_all(writes)
    return [outcome for outcome in outcomes if not isinstance(outcome, CoordinatorError)]


class BatchesContract:
    """`write_all`: each write behaves like a single one."""

    async def test_nothing_to_write_is_nothing_written(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        assert await coordinator.write_all([]) == []

    async def test_all_are_written_each_under_the_version_returned(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        writes = [KeyWrite(f"plan/{number}", b"%d" % number, 0) for number in range(MANY)]
        given = await versions(coordinator, writes)
        assert await coordinator.list("plan/") == {
            write.key: Versioned(write.value or b"", version) for write, version in zip(writes, given, strict=True)
        }

    async def test_puts_and_deletes_of_several_areas_go_together(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        old = await coordinator.put("moves/a", b"old")
        await coordinator.put("moves/b", b"old")
        new, *rest = await coordinator.write_all(
            [
                KeyWrite("plan/a", b"", 0),
                KeyWrite("moves/a", None, old),
                KeyWrite("moves/b", None),
                KeyWrite("moves/never", None),
            ]
        )
        assert rest == [0, 0, 0]
        assert await coordinator.get("plan/a") == Versioned(b"", new if isinstance(new, int) else -1)
        assert await coordinator.list("moves/") == {}

    async def test_versions_grow_also_over_a_delete_among_many(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        single = await coordinator.put("plan/0", b"")
        first = await versions(coordinator, puts(3))
        await coordinator.write_all([KeyWrite(f"plan/{number}", None) for number in range(3)])
        second = await versions(coordinator, puts(3))
        assert single < first[0]
        assert all(one < other for one, other in zip(first, second, strict=True))
        assert await coordinator.put("plan/0", b"") > second[0]

    async def test_a_conflict_is_told_in_its_place_and_stops_no_other(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        version = await coordinator.put("plan/1", b"taken")
        outcomes = await coordinator.write_all(
            [
                KeyWrite("plan/0", b"new", 0),
                KeyWrite("plan/1", b"new", 0),
                KeyWrite("plan/2", b"new", version),
                KeyWrite("plan/3", None, version),
                KeyWrite("plan/4", b"new"),
            ]
        )
        assert [isinstance(outcome, ConflictError) for outcome in outcomes] == [False, True, True, True, False]
        assert f"plan/1 is at version {version}" in str(outcomes[1])
        assert "plan/2 does not exist" in str(outcomes[2])
        stored = await coordinator.list("plan/")
        assert {key: now.value for key, now in stored.items()} == {
            "plan/0": b"new",
            "plan/1": b"taken",
            "plan/4": b"new",
        }

    async def test_what_cannot_be_is_refused_before_anything_is_written(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        for bad, why in (
            (KeyWrite("ring", b""), "key"),
            (KeyWrite("plan/big", bytes(names.VALUE_BYTES_MAX + 1)), f"limit is {names.VALUE_BYTES_MAX}"),
            (KeyWrite("plan/0", None), "plan/0' occurs twice"),
        ):
            with pytest.raises(CoordinatorError, match=why):
                await coordinator.write_all([*puts(3), bad])
        assert await coordinator.list("plan/") == {}

    async def test_large_values_are_written_too(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        value = bytes(names.VALUE_BYTES_MAX)
        await coordinator.write_all(puts(4, value))
        assert {now.value for now in (await coordinator.list("plan/")).values()} == {value}

    async def test_of_many_batches_with_one_expectation_one_wins_each_key(self, coordinator_factory: Factory) -> None:
        writers = [await coordinator_factory() for _ in range(4)]

        async def write(number: int) -> list[int | CoordinatorError]:
            writes = puts(20, b"%d" % number, 0)
            order = writes if number % 2 else writes[::-1]
            outcomes = await writers[number].write_all(order)
            return outcomes if number % 2 else outcomes[::-1]

        results = await asyncio.gather(*map(write, range(4)))
        stored = await writers[0].list("plan/")
        for position, of_key in enumerate(zip(*results, strict=True)):
            ((winner, version),) = [(who, won) for who, won in enumerate(of_key) if isinstance(won, int)]
            assert stored[f"plan/{position}"] == Versioned(b"%d" % winner, version)

    async def test_a_key_that_others_keep_changing_holds_up_no_other(self, coordinator_factory: Factory) -> None:
        writer, other = await coordinator_factory(), await coordinator_factory()

        async def keep_changing() -> None:
            while True:
                await other.put("plan/7", b"hot")

        changing = [asyncio.create_task(keep_changing()) for _ in range(3)]
        try:
            async with asyncio.timeout(PATIENCE_S):
                for expect in (None, 0):
                    outcomes = await writer.write_all([*puts(20), KeyWrite(f"plan/last {expect}", b"", expect)])
                    assert all(isinstance(outcome, int) for outcome in outcomes)
        finally:
            for task in changing:
                task.cancel()
            await asyncio.wait(changing)

    async def test_watches_hear_of_each_key_of_theirs(self, coordinator_factory: Factory) -> None:
        writer, reader = await coordinator_factory(), await coordinator_factory()
        plan, moves = Follower(reader, "plan/"), Follower(reader, "moves/")
        await writer.write_all([*puts(MANY), KeyWrite("moves/a", b"a"), KeyWrite("moves/ü\n\0", b"b")])
        await plan.until({f"plan/{number}": b"1" for number in range(MANY)})
        await moves.until({"moves/a": b"a", "moves/ü\n\0": b"b"})
        await writer.write_all([KeyWrite("moves/a", None), *puts(MANY, b"2"), KeyWrite("moves/ü\n\0", b"c")])
        await plan.until({f"plan/{number}": b"2" for number in range(MANY)})
        await moves.until({"moves/ü\n\0": b"c"})
        for follower in (plan, moves):
            await follower.stop()

    async def test_a_watch_with_much_to_tell_lets_others_work(self, coordinator_factory: Factory) -> None:
        """A watch with many changes must let other tasks run."""
        writer, reader = await coordinator_factory(), await coordinator_factory()
        await writer.write_all(puts(MANY))
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        changes = reader.watch("plan/")
        await anext(changes)
        counting = asyncio.create_task(count())
        for _ in range(MANY - 1):
            await anext(changes)
        assert turns > 0
        counting.cancel()
        await changes.aclose()

    # -- Fencing ---------------------------------------------------------------------------------------------

    async def test_fenced_writes_pass_while_the_lease_is_held_and_renewed(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        lease = await held(coordinator.acquire("plan/keeper", "me", 60.0))

        async def keep_renewing() -> None:
            while True:
                assert await coordinator.renew(lease)

        renewing = asyncio.create_task(keep_renewing())
        outcomes = await coordinator.write_all(puts(MANY, expect=0), fence=lease)
        assert not renewing.done()
        renewing.cancel()
        assert all(isinstance(outcome, int) for outcome in outcomes)
        assert len(await coordinator.list("plan/")) == MANY

    async def test_many_writes_of_a_writer_that_lost_its_lease_are_fenced_off(
        self, coordinator_factory: Factory
    ) -> None:
        old, new = await coordinator_factory(), await coordinator_factory()
        lost = await held(old.acquire("plan/keeper", "old", 60.0))
        version = await old.put("plan/0", b"old", fence=lost)
        await held(new.acquire("plan/keeper", "new", 60.0, takeover=True))
        with pytest.raises(LeaseLostError, match="plan/keeper"):
            await old.write_all([KeyWrite("plan/0", None), KeyWrite("plan/1", b"late")], fence=lost)
        assert await new.list("plan/") == {"plan/0": Versioned(b"old", version)}

    async def test_none_of_many_fenced_writes_slips_in_after_a_takeover(self, coordinator_factory: Factory) -> None:
        old, new = await coordinator_factory(), await coordinator_factory()
        for round_ in range(5):
            lease = await held(old.acquire("plan/keeper", f"old {round_}", 60.0, takeover=True))

            async def write(fence: Lease) -> None:
                while True:
                    await old.write_all(puts(MANY), fence=fence)

            writing = asyncio.create_task(write(lease))
            await asyncio.sleep(0.005)
            await held(new.acquire("plan/keeper", f"new {round_}", 60.0, takeover=True))
            after = await new.list("plan/")
            with pytest.raises(LeaseLostError):
                await writing
            assert await new.list("plan/") == after

    # -- Crashes ---------------------------------------------------------------------------------------------

    async def test_many_writes_through_crashes_are_applied_once(
        self, coordinator_factory: Factory, store: Store
    ) -> None:
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
        steps = 0
        expected = [0] * 30
        while not stop.is_set():
            writes = [KeyWrite(f"plan/{number}", b"%d" % steps, version) for number, version in enumerate(expected)]
            expected = await versions(coordinator, writes)
            assert len(expected) == len(writes)
            steps += 1
        await crashing
        assert await coordinator.list("plan/") == {
            f"plan/{number}": Versioned(b"%d" % (steps - 1), version) for number, version in enumerate(expected)
        }
