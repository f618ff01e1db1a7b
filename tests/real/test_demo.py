"""`shoal demo` as a user runs it: it plays, a balancer decides, a server dies, nothing is lost or stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SRC = Path(__file__).parent.parent.parent / "src"
PLAYERS = 30


def start(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    """A demo whose temporary files are all below `tmp_path`, so that what it leaves there can be seen."""
    environment = {**os.environ, "PYTHONPATH": str(SRC), "TMPDIR": str(tmp_path), "NO_COLOR": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "shoal.cli", "demo", "--players", str(PLAYERS), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def left_behind(tmp_path: Path) -> list[str]:
    """Processes of the demo that do not end, and files that still lie there."""
    return [*outliving(tmp_path), *(path.name for path in tmp_path.iterdir())]


def outliving(tmp_path: Path) -> list[str]:
    """Processes of the demo that still run after a while. A child of a process that was killed ends a little later."""
    deadline = time.monotonic() + 60
    while (processes := running(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return processes


def running(tmp_path: Path) -> list[str]:
    """The commands of the demo's processes."""
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={tmp_path}\0".encode() in (process / "environ").read_bytes():
                commands.append(f"{process.name}: {(process / 'cmdline').read_text()}")
        except OSError:
            continue
    return commands


def test_a_headless_demo_follows_the_crowd_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    demo = start(tmp_path, "--headless", "--seconds", "12", "--servers-max", "3", "--json")
    out, err = demo.communicate()
    assert demo.returncode == 0, err
    (last,) = out.splitlines()
    facts: dict[str, Any] = json.loads(last)
    assert (facts["lost"], facts["duplicated"], facts["reordered"]) == (0, 0, 0)
    assert 0 < facts["players"] <= PLAYERS, "on a busy machine not all have joined in time"
    assert facts["server_kills"] == 1
    assert facts["proposals"] >= 1
    assert facts["moves_asked"] >= facts["moves"]
    assert 2 <= facts["servers"] <= facts["servers_most"] <= 3
    assert facts["messages"] > 100
    assert facts["deliveries"] > facts["messages"]
    assert 0 < facts["response_ms"]["p50"] <= facts["response_ms"]["p99"]
    assert facts["seconds"] >= 12
    assert facts["troubles"] == []
    events = " ".join(event["text"] for event in facts["events"])
    for word in ("s2 killed", "noticed: s2", "restarted: s2", "healed", "busiest server"):
        assert word in events
    assert "to add (grow)" in events or "to move" in events
    lines = [text for text in err.splitlines() if "deliveries/s" in text]
    assert len(lines) >= 12
    assert left_behind(tmp_path) == []


def test_an_interrupted_demo_ends_with_its_summary(tmp_path: Path) -> None:
    demo = start(tmp_path, "--seconds", "60")
    assert demo.stderr is not None
    while "deliveries/s" not in (text := demo.stderr.readline()):
        assert text, "the demo ended before its first second"
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate()
    assert demo.returncode == 0, err
    assert "interrupted" in out
    assert "nothing was lost" in out
    assert "\x1b" not in out + err
    assert left_behind(tmp_path) == []


def test_a_demo_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    demo = start(tmp_path, "--seconds", "60")
    assert demo.stderr is not None
    while "deliveries/s" not in demo.stderr.readline():
        assert demo.poll() is None
    demo.kill()
    demo.communicate()
    assert outliving(tmp_path) == []
