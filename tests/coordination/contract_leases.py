"""The coordinator's contract, part 2: leases, fencing, memberships, barriers."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from tests.coordination.contract_support import PATIENCE_S, SOON_S, Factory, Store, eventually, held

from shoal.coordination.interface import Lease, Versioned
from shoal.errors import LeaseLostError


class LeasesContract:
    """Leases, memberships and barriers."""

    # -- Leases ----------------------------------------------------------------------------------------------

    async def test_a_lease_has_one_holder(self, coordinator_factory: Factory) -> None:
        one, other = await coordinator_factory(), await coordinator_factory()
        lease = await held(one.acquire("servers/7", "one", 60.0))
        assert (lease.name, lease.holder, lease.ttl_s) == ("servers/7", "one", 60.0)
        assert await other.acquire("servers/7", "other", 60.0) is None
        info = await other.lease_of("servers/7")
        assert info is not None
        assert (info.name, info.holder, info.token) == ("servers/7", "one", lease.token)
        assert 0 < info.remaining_s <= 60.0
        assert await one.renew(lease)

    async def test_of_many_who_want_a_lease_one_gets_it(self, coordinator_factory: Factory) -> None:
        clients = [await coordinator_factory() for _ in range(3)]
        wishes = (clients[number % 3].acquire("servers/7", f"holder {number}", 60.0) for number in range(9))
        assert len([lease for lease in await asyncio.gather(*wishes) if lease]) == 1

    async def test_the_holder_acquires_again_with_the_same_token(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        first = await held(coordinator.acquire("servers/7", "me", 1.0))
        again = await held(coordinator.acquire("servers/7", "me", 60.0))
        assert again.token == first.token
        info = await coordinator.lease_of("servers/7")
        assert info is not None
        assert info.remaining_s > 1.0

    async def test_an_expired_lease_is_lost_and_free(self, coordinator_factory: Factory) -> None:
        one, other = await coordinator_factory(), await coordinator_factory()
        lost = await held(one.acquire("servers/7", "one", SOON_S))
        newer: list[Lease] = []

        async def taken() -> bool:
            lease = await other.acquire("servers/7", "other", 60.0)
            newer.extend([lease] if lease else [])
            return lease is not None

        await eventually(taken)
        assert newer[0].token > lost.token
        assert not await one.renew(lost)
        await one.release(lost)
        info = await one.lease_of("servers/7")
        assert info is not None
        assert info.holder == "other"

    async def test_renewing_keeps_a_lease_longer_than_its_time(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        short = await held(coordinator.acquire("servers/7", "me", 5.0))
        lease = Lease(short.name, short.holder, short.token, 60.0)
        assert await coordinator.renew(lease)
        info = await coordinator.lease_of("servers/7")
        assert info is not None
        assert info.remaining_s > 5.0

    async def test_an_expired_lease_shows_nowhere(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        lost = await held(coordinator.acquire("servers/7", "me", SOON_S))

        async def gone() -> bool:
            return await coordinator.lease_of("servers/7") is None

        await eventually(gone)
        assert await coordinator.leases("servers/") == {}
        assert not await coordinator.renew(lost)
        again = await held(coordinator.acquire("servers/7", "me", 60.0))
        assert again.token > lost.token

    async def test_takeover_ends_the_lease_of_the_other(self, coordinator_factory: Factory) -> None:
        one, other = await coordinator_factory(), await coordinator_factory()
        lost = await held(one.acquire("servers/7", "one", 60.0))
        newer = await held(other.acquire("servers/7", "other", 60.0, takeover=True))
        assert newer.token > lost.token
        assert not await one.renew(lost)
        await one.release(lost)
        assert await other.renew(newer)

    async def test_a_released_lease_is_free_at_once(self, coordinator_factory: Factory) -> None:
        one, other = await coordinator_factory(), await coordinator_factory()
        lease = await held(one.acquire("servers/7", "one", 60.0))
        await one.release(lease)
        assert await other.lease_of("servers/7") is None
        newer = await held(other.acquire("servers/7", "other", 60.0))
        assert newer.token > lease.token

    async def test_leases_are_listed_by_prefix(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        for name in ("servers/1", "servers/2", "servers/22", "plan/keeper"):
            await held(coordinator.acquire(name, f"holder of {name}", 60.0))
        assert {name: info.holder for name, info in (await coordinator.leases("servers/2")).items()} == {
            "servers/2": "holder of servers/2",
            "servers/22": "holder of servers/22",
        }
        assert set(await coordinator.leases("servers/")) == {"servers/1", "servers/2", "servers/22"}

    async def test_leases_and_keys_of_one_name_do_not_meet(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        await held(coordinator.acquire("plan/keeper", "me", 60.0))
        assert await coordinator.get("plan/keeper") is None
        await coordinator.put("plan/keeper", b"value", expect=0)
        assert set(await coordinator.leases("plan/")) == {"plan/keeper"}
        assert set(await coordinator.list("plan/")) == {"plan/keeper"}

    # -- Fencing ---------------------------------------------------------------------------------------------

    async def test_a_fenced_write_passes_while_the_lease_is_held(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        lease = await held(coordinator.acquire("plan/keeper", "me", 60.0))
        version = await coordinator.put("plan/ring", b"1", expect=0, fence=lease)
        await coordinator.delete("plan/ring", expect=version, fence=lease)

    async def test_a_writer_that_lost_its_lease_is_fenced_off(self, coordinator_factory: Factory) -> None:
        old, new = await coordinator_factory(), await coordinator_factory()
        lost = await held(old.acquire("plan/keeper", "old", 60.0))
        version = await old.put("plan/ring", b"old", fence=lost)
        lease = await held(new.acquire("plan/keeper", "new", 60.0, takeover=True))
        with pytest.raises(LeaseLostError, match="plan/keeper"):
            await old.put("plan/ring", b"late", fence=lost)
        with pytest.raises(LeaseLostError, match="plan/keeper"):
            await old.delete("plan/ring", expect=version, fence=lost)
        await new.release(lease)
        with pytest.raises(LeaseLostError):
            await new.put("plan/ring", b"late", fence=lease)
        assert await new.get("plan/ring") == Versioned(b"old", version)

    async def test_no_fenced_write_slips_in_after_a_takeover(self, coordinator_factory: Factory) -> None:
        """Writers race with takeovers. After a takeover, the value must stay as the new holder found it."""
        old, new = await coordinator_factory(), await coordinator_factory()
        for round_ in range(10):
            lease = await held(old.acquire("plan/keeper", f"old {round_}", 60.0, takeover=True))

            async def write(fence: Lease) -> None:
                while True:
                    await old.put("plan/ring", b"old", fence=fence)

            writing = asyncio.create_task(write(lease))
            await asyncio.sleep(0.005)
            await held(new.acquire("plan/keeper", f"new {round_}", 60.0, takeover=True))
            after = await new.get("plan/ring")
            with pytest.raises(LeaseLostError):
                await writing
            assert await new.get("plan/ring") == after

    # -- Membership ------------------------------------------------------------------------------------------

    async def test_members_come_stay_and_leave(self, coordinator_factory: Factory) -> None:
        one, other = await coordinator_factory(), await coordinator_factory()
        assert await one.members("servers") == {}
        first = await one.join("servers", "1", b"address 1", 60.0)
        await other.join("servers", "2", b"address 2", 60.0)
        await other.join("elsewhere", "3", b"", 60.0)
        assert (first.group, first.member, first.ttl_s) == ("servers", "1", 60.0)
        assert await other.members("servers") == {"1": b"address 1", "2": b"address 2"}
        assert await first.renew()
        await first.leave()
        assert not await first.renew()
        await first.leave()
        assert await other.members("servers") == {"2": b"address 2"}

    async def test_a_member_that_does_not_renew_is_gone(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        membership = await coordinator.join("servers", "1", b"", SOON_S)

        async def gone() -> bool:
            return await coordinator.members("servers") == {}

        await eventually(gone)
        assert not await membership.renew()

    async def test_the_last_join_under_a_name_wins(self, coordinator_factory: Factory) -> None:
        one, other = await coordinator_factory(), await coordinator_factory()
        before = await one.join("servers", "1", b"before", 60.0)
        after = await other.join("servers", "1", b"after", 60.0)
        assert not await before.renew()
        await before.leave()
        assert await after.renew()
        assert await one.members("servers") == {"1": b"after"}

    async def test_a_watch_of_members_sees_joins_leaves_and_expiry(self, coordinator_factory: Factory) -> None:
        one, other = await coordinator_factory(), await coordinator_factory()
        async with asyncio.timeout(PATIENCE_S), aclosing(other.watch_members("servers")) as states:
            assert await anext(states) == {}
            staying = await one.join("servers", "1", b"a", 60.0)
            assert await anext(states) == {"1": b"a"}
            await one.join("servers", "2", b"b", SOON_S)
            assert await anext(states) == {"1": b"a", "2": b"b"}
            assert await anext(states) == {"1": b"a"}
            await staying.leave()
            assert await anext(states) == {}

    async def test_a_watch_of_members_survives_a_crash(self, coordinator_factory: Factory, store: Store) -> None:
        one, other = await coordinator_factory(), await coordinator_factory()
        async with asyncio.timeout(PATIENCE_S), aclosing(other.watch_members("servers")) as states:
            assert await anext(states) == {}
            await asyncio.to_thread(store.kill)
            await asyncio.to_thread(store.restart)
            await one.join("servers", "1", b"a", 60.0)
            assert await anext(states) == {"1": b"a"}

    # -- Barriers --------------------------------------------------------------------------------------------

    async def test_nobody_passes_a_barrier_before_all_have_come(self, coordinator_factory: Factory) -> None:
        clients = [await coordinator_factory() for _ in range(3)]
        early = [
            asyncio.create_task(clients[number].barrier("move/1", f"m{number}", 3).wait(PATIENCE_S))
            for number in range(2)
        ]
        _, waiting = await asyncio.wait(early, timeout=SOON_S)
        assert len(waiting) == 2
        assert await clients[2].barrier("move/1", "m2", 3).wait(PATIENCE_S)
        assert await asyncio.gather(*early) == [True, True]
        assert await clients[0].barrier("move/1", "late", 3).wait(PATIENCE_S)

    async def test_one_member_counts_once(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        waits = (coordinator.barrier("move/1", "same", 2).wait(SOON_S) for _ in range(2))
        assert await asyncio.gather(*waits) == [False, False]

    async def test_who_gives_up_waiting_has_not_arrived(self, coordinator_factory: Factory) -> None:
        coordinator = await coordinator_factory()
        assert not await coordinator.barrier("move/1", "a", 2).wait(SOON_S)
        assert not await coordinator.barrier("move/1", "b", 2).wait(SOON_S)
        both = (coordinator.barrier("move/1", member, 2).wait(PATIENCE_S) for member in "ab")
        assert await asyncio.gather(*both) == [True, True]

    async def test_a_barrier_survives_a_crash(self, coordinator_factory: Factory, store: Store) -> None:
        one, other = await coordinator_factory(), await coordinator_factory()
        waiting = asyncio.create_task(one.barrier("move/1", "a", 2).wait(PATIENCE_S))
        await asyncio.sleep(SOON_S)
        await asyncio.to_thread(store.kill)
        await asyncio.to_thread(store.restart)
        assert await other.barrier("move/1", "b", 2).wait(PATIENCE_S)
        assert await waiting
