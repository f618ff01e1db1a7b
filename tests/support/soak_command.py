"""`shoal soak` in a process of its own, in small."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

LONGER = (1, 2, 4)
"""A busy machine may not meet every corner in the time that is enough for a quiet one. Then the run is repeated, two
and four times as long."""


def run_soak(*words: str, seconds: int) -> tuple[int, dict[str, Any], str]:
    """Exit status, facts and standard error of the first run that meets every corner, or has another violation."""
    for times in LONGER:
        command = [sys.executable, "-m", "shoal.cli", "soak", *words, "--seconds", str(times * seconds), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout.count("\n") == 1, done.stderr
        facts: dict[str, Any] = json.loads(done.stdout)
        if not only_misses_corners(facts["violations"]):
            break
    return done.returncode, facts, done.stderr


def only_misses_corners(violations: Sequence[str]) -> bool:
    """Whether a run was too short to prove anything, and nothing else is wrong with it."""
    return bool(violations) and all(violation.startswith("never exercised: ") for violation in violations)
