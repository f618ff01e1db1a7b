"""The checker of queue soaks: each violation is found, and a message that comes again for a good reason is none."""

from __future__ import annotations

from pathlib import Path

from shoal.lab.soak.queue_checker import QueueFindings, judge
from shoal.lab.soak.queue_orders import Event, EventLog, decode_payload, encode_payload, read_events

FINE = """
sent p p 1 1 1.0
accepted p p 1 1 1.1
accepted p p 1 2 1.2
begun a p 1 1 2.0
ended a p 1 1 2.1
confirmed a p 1 1 2.2
begun a p 1 2 2.3
ended a p 1 2 2.4
confirmed a p 1 2 2.5
"""


def verdict(text: str, **kills: float) -> QueueFindings:
    events = []
    for line in text.split("\n"):
        if words := line.split():
            what, client, producer, key, number, at = words
            events.append(Event(what, client, producer, int(key), int(number), float(at)))
    return judge(events, kills)


def test_messages_that_are_processed_in_order_are_fine() -> None:
    report = verdict(FINE)
    assert (report.accepted, report.processed, report.repeated) == (2, 2, 0)
    assert report.violations == []


def test_an_accepted_message_without_an_ended_handler_is_lost() -> None:
    report = verdict("accepted p p 1 1 1.0\nbegun a p 1 1 2.0")
    assert report.lost == 1
    assert report.violations == ["lost: message 1 of p, key 1"]


def test_a_message_that_was_not_accepted_is_not_owed() -> None:
    assert verdict("sent p p 1 1 1.0\nunsure p p 1 1 1.1").violations == []


def test_a_message_that_begins_before_an_earlier_one_has_ended_is_reordered() -> None:
    report = verdict(FINE.replace("begun a p 1 2 2.3", "begun b p 1 2 1.5").replace("a p 1 2", "b p 1 2"))
    assert report.reordered == 1


def test_an_earlier_message_that_is_missing_makes_the_later_ones_reordered() -> None:
    report = verdict(FINE.replace("ended a p 1 1 2.1\nconfirmed a p 1 1 2.2\n", "").replace("begun a p 1 1 2.0\n", ""))
    assert (report.lost, report.reordered) == (1, 1)


def test_messages_of_other_producers_have_no_order() -> None:
    assert verdict(FINE.replace("p 1 2", "q 1 2")).violations == []


def test_two_consumers_with_one_key_overlap() -> None:
    report = verdict(FINE.replace("ended a p 1 1 2.1", "ended a p 1 1 2.35").replace("a p 1 2", "b q 1 2"))
    assert report.overlapped == 1
    assert "key 1" in report.violations[0]


def test_a_killed_consumer_has_no_message_any_more() -> None:
    again = "accepted p p 1 1 1.0\nbegun a p 1 1 2.0\nbegun b p 1 1 5.0\nended b p 1 1 5.1\nconfirmed b p 1 1 5.2"
    report = verdict(again, a=2.5)
    assert report.violations == []
    assert report.repeated == 1
    assert report.takeover_ms == 2500.0


def test_a_message_that_comes_again_while_its_consumer_lives_is_unexplained() -> None:
    again = "accepted p p 1 1 1.0\nbegun a p 1 1 2.0\nended a p 1 1 2.1\nbegun b p 1 1 5.0\nended b p 1 1 5.1"
    assert verdict(again).unexplained_duplicates == 1
    assert verdict(again, a=6.0).unexplained_duplicates == 1
    assert verdict(again + "\nlost a p 1 1 5.3").unexplained_duplicates == 0


def test_a_message_that_comes_again_after_its_end_was_confirmed_is_unexplained() -> None:
    again = FINE + "begun b p 1 2 3.0\nended b p 1 2 3.1\nconfirmed b p 1 2 3.2"
    assert verdict(again, a=2.9).unexplained_duplicates == 1


def test_a_log_is_read_up_to_the_line_that_a_kill_has_cut(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log", "a")
    log.write("begun", "p", 1, 2)
    with (tmp_path / "log").open("a") as file:
        file.write("ended a p 1")
    (event,) = read_events(tmp_path / "log")
    assert (event.what, event.client, event.producer, event.key, event.number) == ("begun", "a", "p", 1, 2)
    assert decode_payload(encode_payload("p", 1, 2)) == ("p", 1, 2)
