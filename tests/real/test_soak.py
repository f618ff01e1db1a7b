"""`shoal soak` on a real cluster, in small; and the proof that its checking process notices what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.soak_command import LONGER, run_soak

from shoal.cli import main
from shoal.lab.soak.checker import Checker, RoundReport, Severity
from shoal.lab.soak.corners import wanted_corners
from shoal.lab.soak.faults import FaultPlan
from shoal.lab.soak.outcome import SoakOptions, SoakOutcome
from shoal.lab.soak.run import Round
from shoal.limits import DEFAULT_LIMITS

FACTS = {
    *("protocol", "seeds", "messages", "deliveries", "moves", "faults", "lost", "duplicated", "reordered"),
    *("gaps_reported", "violations", "exercised", "seconds"),
}
SECONDS = 3
GAP_TIMEOUT_S = 5.0
"""Short, because a run waits for what is in doubt."""
SIZE = ("--servers", "2", "--subscribers", "8")
Lines = list[list[Any]]


def test_nothing_is_silent_while_servers_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_LIMITS_GAP_TIMEOUT_S", str(GAP_TIMEOUT_S))
    status, facts, errors = run_soak("channels", *SIZE, "--kill-server", seconds=SECONDS)
    assert facts["violations"] == [], errors
    assert status == 0
    assert facts.keys() >= FACTS
    assert (facts["lost"], facts["duplicated"], facts["reordered"]) == (0, 0, 0)
    assert facts["faults"] > 0
    assert facts["messages"] > 100
    assert facts["deliveries"] > 100


def test_frozen_servers_and_a_coordinator_that_goes_away_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are reported, not judged: they depend on the machine."""
    monkeypatch.setenv("SHOAL_LIMITS_GAP_TIMEOUT_S", str(GAP_TIMEOUT_S))
    _, facts, errors = run_soak("channels", *SIZE, "--freeze", "--kill-coordinator", seconds=18)
    others = [text for text in facts["violations"] if not text.startswith(("false gap", "never exercised"))]
    assert others == [], errors
    assert (facts["lost"], facts["duplicated"], facts["reordered"]) == (0, 0, 0)
    assert facts["exercised"]["server frozen"] > 0
    assert facts["exercised"]["server left ring"] > 0
    assert facts["exercised"]["coordinator killed"] > 0
    assert facts["gaps_false"] == sum(text.startswith("false gap") for text in facts["violations"])
    assert facts["failover_s_max"] > 0
    assert facts["coordinator_return_stall_ms"] >= 0
    assert facts["coordinator_returns"] > 0


# The checking process


async def test_a_run_with_killed_agents_is_clean_and_every_spoiled_log_of_it_is_noticed(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, gap_timeout_s=GAP_TIMEOUT_S)
    for times in LONGER:
        directory = tmp_path / f"round-{times}"
        directory.mkdir()
        options = SoakOptions(
            servers=2,
            subscribers=8,
            seconds=times * SECONDS,
            faults=FaultPlan(kill_agents=True),
            seed=5,
            limits=limits,
        )
        run = Round(options, options.seed, directory, lambda progress: None)
        report = await run.execute()
        assert report.violations == []
        assert (report.lost, report.duplicated, report.reordered, report.gaps_reported) == (0, 0, 0, 0)
        assert report.messages > 100
        assert report.deliveries > 100
        outcome = SoakOutcome(options)
        outcome.add(report, run.kills)
        if not outcome.corners_missed:
            break
    assert outcome.corners_missed == []
    assert outcome.holds
    assert outcome.facts()["faults"] > 0
    for name, (log, spoil, check) in SPOILS.items():
        spoiled = judge_spoiled(directory, tmp_path / name, log, spoil)
        assert check(spoiled), f"{name}: {spoiled}"
        assert spoiled.violation_count


def judge_spoiled(directory: Path, copy: Path, log: str, spoil: Callable[[Lines], None]) -> RoundReport:
    """The verdict on a copy of the logs in which one log was tampered with."""
    copy.mkdir()
    for path in directory.glob("*.log"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        if path.name == log:
            spoil(lines)
        (copy / path.name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Checker(copy, Severity.AGENTS).check()


def deliveries(lines: Lines) -> list[int]:
    """Where the deliveries of one busy stream to one subscription that stays stand."""
    left = {line[1] for line in lines if line[0] == "left"}
    of_stream: dict[tuple[Any, ...], list[int]] = {}
    for index, line in enumerate(lines):
        if line[0] == "got" and line[1] not in left:
            of_stream.setdefault((line[1], line[4], line[5]), []).append(index)
    return max(of_stream.values(), key=len)


def drop(which: int) -> Callable[[Lines], None]:
    def spoil(lines: Lines) -> None:
        del lines[deliveries(lines)[which]]

    return spoil


def double(lines: Lines) -> None:
    index = deliveries(lines)[3]
    lines.insert(index, lines[index])


def swap(lines: Lines) -> None:
    first, second = deliveries(lines)[3:5]
    lines[first], lines[second] = lines[second], lines[first]


def mislabel(lines: Lines) -> None:
    lines[deliveries(lines)[3]][6] += 1


def invent(lines: Lines) -> None:
    lines[deliveries(lines)[3]][3] = 10**12


def cry_wolf(lines: Lines) -> None:
    index = deliveries(lines)[3]
    _, subscription, at, _, channel, publisher, sequence = lines[index]
    lines.insert(index, ["gap", subscription, at, channel, publisher, sequence, sequence, "because"])


def cut_off(lines: Lines) -> None:
    del lines[-1]


def forget_a_publish(lines: Lines) -> None:
    channels = Counter(line[2] for line in lines if line[0] == "pub")
    busiest = max(channels, key=channels.__getitem__)
    del lines[next(index for index, line in enumerate(lines) if line[0] == "pub" and line[2] == busiest)]


def says(kind: str) -> Callable[[RoundReport], bool]:
    return lambda report: any(violation.startswith(f"{kind}: ") for violation in report.violations)


SPOILS: dict[str, tuple[str, Callable[[Lines], None], Callable[[RoundReport], bool]]] = {
    "dropped": ("subscribe-0.log", drop(3), lambda report: report.lost == 1),
    "last-dropped": ("subscribe-0.log", drop(-1), lambda report: report.lost == 1),
    "doubled": ("subscribe-0.log", double, lambda report: report.duplicated == 1),
    "swapped": ("subscribe-0.log", swap, lambda report: report.reordered == 1),
    "mislabelled": ("subscribe-0.log", mislabel, says("mislabelled")),
    "invented": ("subscribe-0.log", invent, says("invented")),
    "false-gap": ("subscribe-0.log", cry_wolf, says("false gap")),
    "cut-off": ("subscribe-0.log", cut_off, says("incomplete")),
    "unpublished": ("publish-0.log", forget_a_publish, says("invented")),
}


def test_a_log_that_is_missing_or_unreadable_is_a_violation(tmp_path: Path) -> None:
    (tmp_path / "faults.log").write_text('["end"]\n')
    (tmp_path / "publish-0.log").write_text('["pub", 1, "broken\n["end"]\n')
    report = Checker(tmp_path, Severity.CALM).check()
    assert any("no log of processes that subscribe" in violation for violation in report.violations)
    assert any("publish-0.log holds a line that cannot be read" in violation for violation in report.violations)


def test_the_checking_process_shares_no_code_with_the_router() -> None:
    program = "import sys, shoal.lab.soak.checker; print(*(name for name in sys.modules if name.startswith('shoal.')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "shoal.lab.sim.scenarios.channel_checkers" in loaded
    rooms = {name.split(".")[1] for name in loaded}
    assert not rooms & {"channels", "bus", "redis", "cluster"}


# Corners and words


def test_a_corner_that_was_not_met_fails_the_run() -> None:
    options = SoakOptions(
        servers=2, subscribers=8, seconds=60.0, faults=FaultPlan(kill_agents=True), seed=1, limits=DEFAULT_LIMITS
    )
    outcome = SoakOutcome(options)
    met = dict.fromkeys(wanted_corners(options.faults, options.seconds), 1)
    outcome.add(RoundReport(exercised=met), 3)
    assert outcome.holds
    outcome = SoakOutcome(options)
    outcome.add(RoundReport(exercised={**met, "agent killed": 0}), 0)
    assert not outcome.holds
    assert outcome.facts()["violations"] == ["never exercised: agent killed"]


@pytest.mark.parametrize("flags", ["--servers 1", "--subscribers 3", "--seconds 1", "--seconds nan"])
def test_sizes_that_cannot_be_are_refused(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "channels", *flags.split()]) == 1
    assert flags.split()[0] in capsys.readouterr().err
