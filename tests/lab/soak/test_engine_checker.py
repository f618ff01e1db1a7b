"""The checker of engine soaks: each violation is found, and what is owed is decided without the index."""

from __future__ import annotations

from pathlib import Path

from shoal.filters.language import parse
from shoal.lab.air_quality import PER_CELL, AirQuality, attributes
from shoal.lab.soak.engine_checker import EngineVerdict, judge
from shoal.lab.soak.engine_orders import DELIVERED, EMITTED, GAP, IN_FORCE, REMOVED, ClientLog, Line, read_log

CITY = AirQuality(20, seed=3)
NUMBER = next(number for number in range(2, 100) if len([*CITY.wanted_by(CITY.reading(number))]) > 1)
FIRST, SECOND = [*CITY.wanted_by(CITY.reading(NUMBER))][:2]
OTHER = next(number for number in range(20) if not CITY.wants(number, CITY.reading(NUMBER)))
LATER = next(number for number in range(NUMBER + 1, 200) if CITY.wants(FIRST, CITY.reading(number)))

IN_FORCE_AT_1 = Line(IN_FORCE, 1.0, "r", "-", FIRST)
EMITTED_AT_2 = Line(EMITTED, 2.0, "e", "e", NUMBER)
DELIVERED_AT_3 = Line(DELIVERED, 3.0, "r", "e", NUMBER, (FIRST,))


def verdict(*lines: Line, kills: tuple[float, ...] = ()) -> EngineVerdict:
    return judge(lines, CITY, kills)


def counts(found: EngineVerdict) -> tuple[int, ...]:
    return found.lost, found.duplicated, found.reordered, found.unmatched, found.false_alarms


def test_the_city_agrees_with_the_filter_language() -> None:
    city = AirQuality(400, seed=5)
    filters = [parse(city.filter_text(number)) for number in range(400)]
    for number in range(300):
        reading = city.reading(number)
        event = attributes(reading)
        wanted = [one for one, each in enumerate(filters) if each.matches(event)]
        assert wanted == [*city.wanted_by(reading)]
        assert 1 <= len(wanted) <= PER_CELL


def test_what_is_delivered_in_order_is_fine() -> None:
    later = Line(EMITTED, 2.5, "e", "e", LATER), Line(DELIVERED, 3.1, "r", "e", LATER, (FIRST,))
    found = verdict(IN_FORCE_AT_1, EMITTED_AT_2, DELIVERED_AT_3, *later)
    assert counts(found) == (0, 0, 0, 0, 0)
    assert (found.events, found.deliveries, found.owed, found.violations) == (2, 2, 2, [])


def test_an_event_that_does_not_come_is_lost() -> None:
    assert verdict(IN_FORCE_AT_1, EMITTED_AT_2).lost == 1


def test_an_event_that_does_not_name_a_filter_is_lost_for_it() -> None:
    assert verdict(IN_FORCE_AT_1, IN_FORCE_AT_1._replace(number=SECOND), EMITTED_AT_2, DELIVERED_AT_3).lost == 1


def test_a_gap_afterwards_tells_that_events_are_missing() -> None:
    found = verdict(IN_FORCE_AT_1, EMITTED_AT_2, Line(GAP, 4.0, "r", "-", 0))
    assert (found.lost, found.missed, found.gaps, found.false_alarms) == (0, 1, 1, 0)
    assert verdict(IN_FORCE_AT_1, Line(GAP, 1.5, "r", "-", 0), EMITTED_AT_2).lost == 1


def test_a_gap_without_a_missing_event_is_a_false_alarm() -> None:
    assert verdict(IN_FORCE_AT_1, EMITTED_AT_2, DELIVERED_AT_3, Line(GAP, 4.0, "r", "-", 0)).false_alarms == 1


def test_an_event_twice_is_duplicated() -> None:
    assert counts(verdict(IN_FORCE_AT_1, EMITTED_AT_2, DELIVERED_AT_3, DELIVERED_AT_3)) == (0, 1, 0, 0, 0)


def test_an_event_after_a_later_one_is_reordered() -> None:
    later = Line(EMITTED, 2.5, "e", "e", LATER), Line(DELIVERED, 2.9, "r", "e", LATER, (FIRST,))
    assert counts(verdict(IN_FORCE_AT_1, EMITTED_AT_2, *later, DELIVERED_AT_3)) == (0, 0, 1, 0, 0)


def test_a_filter_that_does_not_want_the_event_is_unmatched() -> None:
    other = IN_FORCE_AT_1._replace(number=OTHER)
    assert verdict(other, EMITTED_AT_2, DELIVERED_AT_3._replace(filters=(OTHER,))).unmatched == 1
    assert verdict(EMITTED_AT_2, DELIVERED_AT_3).unmatched == 1  # not a filter of this reader
    assert verdict(IN_FORCE_AT_1, DELIVERED_AT_3).unmatched == 1  # not emitted


def test_events_before_a_filter_and_around_its_removal_are_not_owed() -> None:
    assert verdict(IN_FORCE_AT_1, EMITTED_AT_2._replace(at=0.5)).lost == 0
    assert verdict(IN_FORCE_AT_1, EMITTED_AT_2, Line(REMOVED, 4.0, "r", "-", FIRST)).lost == 0
    assert verdict(IN_FORCE_AT_1, EMITTED_AT_2, Line(REMOVED, 40.0, "r", "-", FIRST)).lost == 1


def test_recovery_lasts_until_every_reader_has_an_event_emitted_after_the_kill() -> None:
    old = Line(EMITTED, 0.4, "e", "e", 1), Line(DELIVERED, 0.6, "r", "e", 1, (FIRST,))
    found = verdict(IN_FORCE_AT_1, *old, EMITTED_AT_2, DELIVERED_AT_3, kills=(0.5, 1.0))
    assert found.recovered_s == [2.5, 2.0]
    second = Line(IN_FORCE, 1.0, "r2", "-", SECOND)
    assert verdict(IN_FORCE_AT_1, second, EMITTED_AT_2, DELIVERED_AT_3, kills=(1.0,)).recovered_s == [float("inf")]


def test_a_log_keeps_its_lines(tmp_path: Path) -> None:
    log = ClientLog(tmp_path / "a.log", "r")
    log.write(DELIVERED, 3.0, "e", NUMBER, f"{FIRST}")
    log.write(GAP, 4.0, "-", 0)
    log.flush()
    assert read_log(tmp_path / "a.log") == [DELIVERED_AT_3, Line(GAP, 4.0, "r", "-", 0)]
