"""The queues to other servers: in order, repeated after a lost connection, bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.channels.agent.forward_queues import COMMAND_BYTES, WINDOW_BYTES, ForwardMark, Forwards
from shoal.wire.commands import Command

ROOM = 1 << 30


def commands(*numbers: int) -> list[Command]:
    return [(b"PUBLISH", b"c", b"%d" % number) for number in numbers]


def add(forwards: Forwards, *numbers: int, server: str = "s2") -> None:
    for number in numbers:
        forwards.add(server, b"c", b"%d" % number)


def test_nothing_is_handed_out_before_the_connection_stands() -> None:
    forwards = Forwards(ROOM)
    add(forwards, 1, 2)
    assert forwards.take() == {}
    forwards.opened("s2")
    assert forwards.take() == {"s2": commands(1, 2)}
    assert forwards.take() == {}
    add(forwards, 3)
    add(forwards, 4, server="s3")
    assert forwards.take() == {"s2": commands(3)}


def test_commands_without_a_reply_are_sent_again_in_order() -> None:
    forwards = Forwards(ROOM)
    forwards.opened("s2")
    add(forwards, 1, 2, 3)
    forwards.take()
    forwards.replied("s2", 1)
    forwards.lost("s2")
    add(forwards, 4)
    assert forwards.take() == {}
    forwards.opened("s2")
    assert forwards.take() == {"s2": commands(2, 3, 4)}
    forwards.replied("s2", 3)
    forwards.replied("s2", 5)
    assert forwards.held_bytes == 0


def test_the_oldest_is_dropped_and_counted() -> None:
    forwards = Forwards(3 * (COMMAND_BYTES + 2))
    add(forwards, 1, 2, 3, 4, 5)
    assert forwards.dropped == 2
    forwards.opened("s2")
    assert forwards.take() == {"s2": commands(3, 4, 5)}
    add(forwards, 6, 7)
    assert forwards.dropped == 3, "what is under way is not dropped, nor the newest"
    assert forwards.take() == {"s2": commands(7)}


def test_one_command_may_be_larger_than_the_buffer() -> None:
    forwards = Forwards(10)
    add(forwards, 1)
    forwards.opened("s2")
    assert forwards.take() == {"s2": commands(1)}
    assert forwards.dropped == 0


def test_so_much_is_under_way_at_once() -> None:
    forwards = Forwards(ROOM)
    forwards.opened("s2")
    for _ in range(5):
        forwards.add("s2", b"c", bytes(WINDOW_BYTES // 2))
    assert len(forwards.take()["s2"]) == 1
    forwards.replied("s2", 1)
    forwards.add("s2", b"c", bytes(2 * WINDOW_BYTES))
    for _ in range(5):
        assert len(forwards.take()["s2"]) == 1, "at least one"
        forwards.replied("s2", 1)
    assert forwards.take() == {}


def test_servers_that_have_left_are_forgotten() -> None:
    forwards = Forwards(ROOM)
    forwards.opened("s2")
    add(forwards, 1)
    forwards.take()
    add(forwards, 2)
    add(forwards, 3, server="s3")
    forwards.keep(["s1"])
    assert forwards.take() == {}
    forwards.replied("s2", 1)
    assert forwards.held_bytes == 0


def test_a_piece_of_the_queue_has_arrived_when_all_of_it_has_a_reply() -> None:
    forwards = Forwards(ROOM)
    add(forwards, 1)
    start = forwards.position("s2")
    add(forwards, 2, 3)
    mark = ForwardMark(start, forwards.position("s2"))
    add(forwards, 4)
    forwards.opened("s2")
    forwards.take()
    assert forwards.arrived("s2", mark) is False
    forwards.replied("s2", 2)
    assert forwards.arrived("s2", mark) is False
    forwards.lost("s2")
    forwards.opened("s2")
    forwards.take()
    forwards.replied("s2", 1)
    assert forwards.arrived("s2", mark) is True
    assert forwards.arrived("s9", mark) is True, "nobody is there"


def test_a_piece_of_which_something_was_dropped_has_not_arrived() -> None:
    forwards = Forwards(2 * (COMMAND_BYTES + 2))
    start = forwards.position("s2")
    add(forwards, 1, 2, 3)
    mark = ForwardMark(start, forwards.position("s2"))
    assert forwards.arrived("s2", mark) is None
    forwards.opened("s2")
    forwards.take()
    forwards.replied("s2", 2)
    assert forwards.arrived("s2", mark) is None
    start = forwards.position("s2")
    add(forwards, 4)
    mark = ForwardMark(start, forwards.position("s2"))
    forwards.take()
    forwards.replied("s2", 1)
    assert forwards.arrived("s2", mark) is True


@given(st.lists(st.sampled_from(["add", "open", "lose", "take", "reply"]), max_size=60), st.integers(1, 12))
def test_whatever_happens_the_order_is_kept_and_nothing_is_lost_uncounted(steps: list[str], room: int) -> None:
    forwards = Forwards(room * (COMMAND_BYTES + 1 + 3))
    under_way: list[int] = []
    arrived: list[int] = []
    added, is_open = 100, False
    for step in [*steps, "open", "take", "reply"]:
        if step == "add":
            add(forwards, added)
            added += 1
        elif step in ("open", "lose"):
            (forwards.opened if step == "open" else forwards.lost)("s2")
            is_open = step == "open"
            under_way.clear()
        elif step == "take":
            taken = forwards.take().get("s2", [])
            assert is_open or not taken
            under_way += [int(command[2]) for command in taken]
        else:
            forwards.replied("s2", len(under_way))
            arrived += under_way
            under_way.clear()
    assert sorted(set(arrived)) == sorted(arrived)
    assert arrived == sorted(arrived)
    assert len(arrived) + forwards.dropped == added - 100
