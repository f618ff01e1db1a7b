"""Which process of the engine a soak kills: a small run has both kinds of kills."""

from __future__ import annotations

from shoal.lab.soak.engine_round import choose_victim

ENGINES = ["engine-1", "engine-2", "engine-3"]


def test_kills_hit_the_process_that_serves_and_the_others_by_turns() -> None:
    """The process that had served was killed, came back, and served again when the next kill met it."""
    for serving in ENGINES:
        first, second = choose_victim(ENGINES, serving, 0), choose_victim(ENGINES, serving, 1)
        assert first == (serving, True)
        assert second[0] != serving
        assert not second[1]


def test_the_others_take_turns() -> None:
    assert [choose_victim(ENGINES, "engine-2", number)[0] for number in (1, 3, 5)] == [
        "engine-1",
        "engine-3",
        "engine-1",
    ]


def test_one_process_is_killed_even_if_it_is_alone() -> None:
    assert choose_victim(["engine-1"], "engine-1", 1) == ("engine-1", True)
