"""The flow simulator: the situations that a policy gets, and how its decisions are carried out."""

from __future__ import annotations

import numpy as np
import pytest
from tests.flow.flows import SERVER, Script, Steady, models, place, servers

from shoal.balance.columns import ALL_SUBSCRIBERS, NEVER, Placements
from shoal.balance.settings import BalanceSettings
from shoal.flow import FlowSimulator, Models, MoveModel, PoolModel, at_homes
from shoal.flow.model import MeasureModel
from shoal.plan.ring import Ring, ServerAddress

SETTINGS = BalanceSettings(window_s=2, past_windows=3)
TWO = Placements.single([0, 0])


def test_channels_start_at_their_homes() -> None:
    workload = Steady([1.0] * 50, [1] * 50, 1)
    ring = Ring(1, tuple(ServerAddress(server, "", 0) for server in ("s1", "s2", "s3")))
    simulator = FlowSimulator(workload, None, models=models(3))
    homes = [simulator.pool.ids[server] for server in simulator.migrations.in_force.servers]
    assert homes == [ring.home(name.as_py()) for name in workload.names]
    assert (
        at_homes(workload.names, ("s1", "s2", "s3")).servers.tolist() == simulator.migrations.in_force.servers.tolist()
    )


def test_a_policy_gets_the_rates_of_the_window() -> None:
    script = Script({})
    workload = Steady([10.0, 20.0], [5, 3], 4, later={3: [30.0, 20.0]}, publishers=7)
    FlowSimulator(workload, script, SETTINGS, models(2), placements=TWO).run()
    first, second = script.seen
    assert (first.at_s, second.at_s) == (2, 4)
    assert first.channels.publications.tolist() == [10.0, 20.0]
    assert second.channels.publications.tolist() == [20.0, 20.0]
    assert second.channels.messages_out.tolist() == [100.0, 60.0]
    assert second.channels.bytes_out.tolist() == [10_000.0, 6000.0]
    assert second.channels.publishers.tolist() == [7, 7]
    assert second.channels.subscribers.tolist() == [5, 3]
    assert second.channels.cpu_in.tolist() == pytest.approx([20e-6, 20e-6])
    assert second.hosts.ids == ("s1", "s2")
    assert second.hosts.bytes_out.tolist() == [16_000.0, 0.0]
    assert second.hosts.capacity.tolist() == [1e6, 1e6]
    assert second.hosts.takes.all()
    assert (second.moved_at == NEVER).all()
    assert second.planned_at == NEVER
    assert second.past_at.tolist() == [2, 4]
    assert second.past_bytes_out.tolist() == [11_000.0, 16_000.0]


def test_the_past_is_bounded() -> None:
    script = Script({})
    FlowSimulator(Steady([1.0], [1], 20), script, SETTINGS, models(1)).run()
    assert script.seen[-1].past_at.tolist() == [16, 18, 20]


def test_the_measured_traffic_of_a_server_never_exceeds_its_limit() -> None:
    script = Script({})
    FlowSimulator(Steady([200.0], [100], 2), script, SETTINGS, models(1)).run()
    assert script.seen[0].hosts.bytes_out.tolist() == [SERVER.limit_bytes_per_s]
    assert script.seen[0].channels.bytes_out.tolist() == [2e6]


def test_a_move_takes_effect_after_its_delay_and_causes_extra_load() -> None:
    script = Script({2: place([1], Placements.single([1]))})
    moves = MoveModel(delay_s=2, forward_s=2, forward_share=0.1, control_messages_per_client=0)
    series = FlowSimulator(
        Steady([30.0, 50.0], [100, 100], 10), script, SETTINGS, models(2, moves=moves), placements=TWO
    ).run()
    busiest, total = series.column("ratio_max"), series.column("ratio_mean") * 2
    assert busiest[:4] == pytest.approx(0.8)
    # Meanwhile both servers forward a tenth of the channel.
    assert busiest[4:6] == pytest.approx(0.5 + 0.05)
    assert total[4:6] == pytest.approx(0.8 + 2 * 0.05)
    assert busiest[6:] == pytest.approx(0.5)
    assert series.moves == 1
    assert series.rebalanced_at.tolist() == [1]


def test_clients_get_control_messages_about_a_move() -> None:
    script = Script({2: place([0], Placements.single([1]))})
    moves = MoveModel(delay_s=1, forward_s=1, forward_share=0.0, control_messages_per_client=8.0)
    series = FlowSimulator(
        Steady([1.0], [100], 8, publishers=1),
        script,
        SETTINGS,
        models(2, moves=moves),
        placements=Placements.single([0]),
    ).run()
    messages = series.column("ratio_mean") * 2 * SERVER.capacity_bytes_per_s / 100
    assert messages[3] == pytest.approx(100 + 100 * 8)
    assert messages[5] == pytest.approx(100)


def test_servers_that_keep_a_channel_have_no_extra_load() -> None:
    before, after = Placements.build([ALL_SUBSCRIBERS], [(0, 1)]), Placements.build([ALL_SUBSCRIBERS], [(1, 2)])
    script = Script({2: place([0], after)})
    moves = MoveModel(delay_s=1, forward_s=1, forward_share=0.5, control_messages_per_client=0)
    seen = models(3, moves=moves)
    series = FlowSimulator(
        Steady([40.0], [100], 6, publishers=10_000_000), script, SETTINGS, seen, placements=before
    ).run()
    assert series.column("ratio_mean")[3] * 3 == pytest.approx(0.4 + 2 * 0.1)


def test_the_next_situation_shows_the_decision_and_its_time() -> None:
    script = Script({2: place([1], Placements.single([1]))})
    FlowSimulator(Steady([30.0, 50.0], [100, 100], 10), script, SETTINGS, models(2), placements=TWO).run()
    later = script.seen[1]
    assert later.placements.servers.tolist() == [0, 1]
    assert later.planned_at == 2
    assert later.moved_at.tolist() == [NEVER, 2]


def test_there_is_no_decision_while_a_plan_is_under_way() -> None:
    script = Script({2: place([1], Placements.single([1]))})
    moves = MoveModel(delay_s=3, forward_s=2)
    FlowSimulator(Steady([3.0, 5.0], [10, 10], 12), script, SETTINGS, models(2, moves=moves), placements=TWO).run()
    assert [situation.at_s for situation in script.seen] == [2, 8, 10, 12]
    assert script.seen[1].past_at.tolist() == [4, 6, 8]


def test_a_requested_server_joins_after_its_start() -> None:
    script = Script({2: servers(add=2)})
    series = FlowSimulator(Steady([1.0], [1], 12), script, SETTINGS, models(1, most=2)).run()
    assert series.column("servers").tolist() == [1] * 7 + [2] * 5
    assert [situation.pool.adding for situation in script.seen] == [0, 1, 1, 0, 0, 0]
    assert script.seen[-1].hosts.joined_at.tolist() == [NEVER, 7]
    assert series.server_hours == pytest.approx((7 + 10) / 3600)


def test_a_drained_server_leaves_when_it_is_empty() -> None:
    workload = Steady([10.0, 10.0, 10.0], [1, 1, 1], 16)
    script = Script({2: servers(drain=[0]), 6: place([0, 1], Placements.single([2, 1]))})
    simulator = FlowSimulator(workload, script, SETTINGS, models(3), placements=Placements.single([0, 0, 1]))
    series = simulator.run()
    assert script.seen[1].hosts.takes.tolist() == [False, True, True]
    assert series.column("servers")[:8].tolist() == [3] * 8
    assert series.column("servers")[-1] == 2
    last = script.seen[-1]
    assert last.hosts.ids == ("s2", "s3")
    assert last.placements.servers.tolist() == [1, 0, 0]
    assert last.hosts.bytes_out.tolist() == [2000.0, 1000.0]


def test_a_server_that_is_kept_again_stays() -> None:
    script = Script({2: servers(drain=[1]), 4: servers(keep=[1])})
    workload = Steady([1.0, 1.0], [1, 1], 10)
    FlowSimulator(workload, script, SETTINGS, models(2), placements=Placements.single([0, 1])).run()
    assert script.seen[1].hosts.takes.tolist() == [True, False]
    assert script.seen[2].hosts.takes.all()


def test_the_last_servers_stay() -> None:
    script = Script({2: servers(drain=[0, 1])})
    workload = Steady([1.0], [1], 10)
    series = FlowSimulator(workload, script, SETTINGS, models(2), placements=Placements.single([0])).run()
    assert series.column("servers")[-1] == 1


def test_the_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> list[float]:
        seen = Models(server=SERVER, pool=PoolModel(servers_first=2), measures=MeasureModel(noise=0.1))
        script = Script({2: place([0], Placements.build([ALL_SUBSCRIBERS], [(0, 1)]))})
        simulator = FlowSimulator(Steady([50.0], [100], 10, publishers=20), script, SETTINGS, seen, seed=seed)
        ratios: list[float] = simulator.run().column("ratio_max").tolist()
        return ratios + [float(situation.channels.bytes_out[0]) for situation in script.seen]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_measurements_can_be_noisy() -> None:
    script = Script({})
    noisy = Models(server=SERVER, measures=MeasureModel(noise=0.1))
    FlowSimulator(Steady([10.0] * 200, [10] * 200, 2), script, SETTINGS, noisy).run()
    seen = script.seen[0].channels.bytes_out / 10_000
    assert 0.05 < float(np.std(seen)) < 0.2


def test_a_run_can_be_stopped() -> None:
    series = FlowSimulator(Steady([1.0], [1], 50), None, models=models(1)).run(lambda second: second.clients == 1)
    assert len(series) == 1
