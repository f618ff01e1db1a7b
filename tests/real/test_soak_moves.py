"""`shoal soak moves` on a real cluster, in small; and the proof that its checking process notices what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.soak_command import run_soak

from shoal.cli import main
from shoal.lab.soak.checker import Checker, Severity
from shoal.lab.soak.corners import wanted_corners
from shoal.lab.soak.faults import FaultPlan

FACTS = {
    *("protocol", "seeds", "messages", "deliveries", "moves", "faults", "lost", "duplicated", "reordered"),
    *("gaps_reported", "violations", "exercised", "seconds"),
    *("moves_ended", "moves_aborted", "moves_replaced", "moves_open", "subscriptions_closed", "latency_ms"),
    *("latency_p999_difference_ms", "control_per_move_and_client", "forwarded", "plain_lost", "plain_duplicates"),
}
Line = list[Any]


def test_nothing_is_lost_and_no_subscription_is_closed_while_channels_move() -> None:
    status, facts, errors = run_soak("moves", "--servers", "3", "--subscribers", "12", "--moves", "20", seconds=4)
    assert facts["violations"] == [], errors
    assert status == 0
    assert facts.keys() >= FACTS
    zeros = ("lost", "duplicated", "reordered", "gaps_reported", "subscriptions_closed", "foreign_lost", "idle_notices")
    assert {name: facts[name] for name in zeros} == dict.fromkeys(zeros, 0)
    assert facts["moves"] == 20
    assert facts["moves_ended"] + facts["moves_replaced"] + facts["moves_aborted"] == 20
    assert facts["moves_ended"] > 5
    for part in ("quiet", "moving"):
        assert facts["latency_ms"][part]["deliveries"] > 0
    assert facts["plain_messages"] > 0


def test_channels_that_all_move_at_once_settle() -> None:
    status, facts, errors = run_soak("moves", "--servers", "2", "--burst", "20", seconds=3)
    assert facts["violations"] == [], errors
    assert status == 0
    assert facts["moves"] == facts["moves_ended"] == 20
    assert facts["burst_settle_s"] > 0
    assert facts["subscriptions_closed"] == 0


# The checking process


def judged(directory: Path, moves: list[Line], watch: list[Line], subscribe: list[Line]) -> Checker:
    publish: list[Line] = [["opened", 7, 0.0], *(["pub", number, "c", 7, number, float(number)] for number in (1, 2))]
    logs = {"faults": [], "moves": moves, "watch-0": watch, "subscribe-0": subscribe, "publish-0": publish}
    for name, lines in logs.items():
        (directory / f"{name}.log").write_text("".join(json.dumps(line) + "\n" for line in [*lines, ["end"]]))
    return Checker(directory, Severity.CALM)


SUBSCRIBED: list[Line] = [["sub", 1, "c", False, 3, False, 0.1], ["force", 1, 0.2]]
GOT: list[Line] = [["got", 1, 1.5, 1, "c", 7, 1], ["got", 1, 2.25, 2, "c", 7, 2]]


@pytest.mark.parametrize(("channel", "counts"), [("other", (1, 1, 0)), ("c", (1, 0, 1))])
def test_a_delivery_counts_by_what_was_in_motion_at_its_time(
    tmp_path: Path, channel: str, counts: tuple[int, int, int]
) -> None:
    moves: list[Line] = [
        ["ask", channel, "single", ["s2"], True, 2.0],
        ["phase", channel, "end", 9, 5, "single", ["s2"], [], 2.5],
        ["busy", 0.4, 1.9],
        ["busy", 0.95, 2.1],
    ]
    report = judged(tmp_path, moves, [], SUBSCRIBED + GOT).check()
    assert report.violations == []
    assert (report.quiet.count, report.beside.count, report.moved.count) == counts
    assert report.quiet.highest_s == 0.5
    assert max(report.beside.highest_s, report.moved.highest_s) == 0.25
    assert (report.free_quiet.count, report.free_moving.count) == (1, 0)
    assert (report.movements.asked, report.movements.ended) == (1, 1)


@pytest.mark.parametrize(
    ("moves", "watch", "subscribe", "kind"),
    [
        ([["stay", "c", "nobody answers"]], [], GOT, "stuck"),
        ([["ask", "c", "single", ["s2"], True, 1.0], ["drop", "c", 2.0]], [], GOT, "aborted"),
        ([], [], [*GOT, ["shut", 1, "it ended by itself", 3.0]], "closed"),
        ([], [["plain pub", 1, "c", 1.0]], GOT, "foreign"),
        ([], [], GOT[1:], "lost"),
    ],
)
def test_what_must_not_be_is_a_violation(
    tmp_path: Path, moves: list[Line], watch: list[Line], subscribe: list[Line], kind: str
) -> None:
    report = judged(tmp_path, moves, watch, SUBSCRIBED + subscribe).check()
    assert [violation.split(":")[0] for violation in report.violations] == [kind]


# Corners and words


def test_many_moves_must_meet_every_pair_of_placements_and_few_need_not() -> None:
    many = set(wanted_corners(FaultPlan(), 60.0, moves=300))
    assert {"move all_publishers to all_subscribers", "move single to single", "move during a move"} <= many
    assert sum(corner.count(" to ") for corner in many) == 9
    few = set(wanted_corners(FaultPlan(), 5.0, moves=5))
    assert not {corner for corner in few if corner.startswith("move")}


@pytest.mark.parametrize(
    "flags",
    [
        "moves --moves 0",
        "moves --burst 0",
        "moves --burst 10 --moves 10",
        "channels --moves 10",
        "channels --burst 10",
    ],
)
def test_moves_that_cannot_be_are_refused(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", *flags.split()]) == 1
    assert flags.split()[1] in capsys.readouterr().err
