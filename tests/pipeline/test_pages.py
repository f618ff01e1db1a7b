"""The page about the pipeline: its tutorial says what the page promises, and its programs run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pipeline.page_runner import programs, tutorial

ROOT = Path(__file__).parents[2]
RUN_TIMEOUT_S = 1000.0
PROMISED = re.compile(r"#->(.*)")


@pytest.mark.spark
def test_the_tutorial_and_the_programs_of_the_page_run(tmp_path: Path) -> None:
    """In an empty directory; the texts after `#->` must be printed, in that order."""
    front = tmp_path / "bin" / "shoal"
    front.parent.mkdir()
    front.write_text(f'#!/bin/sh\nexec {sys.executable} -m shoal.cli "$@"\n')
    front.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    environ = {
        **os.environ,
        "PATH": f"{front.parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "PYTHONUNBUFFERED": "1",
        "SHOAL_STATE_DIR": str(tmp_path / "state"),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.pipeline.page_runner"],
            cwd=work,
            env=environ,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
    finally:
        subprocess.run([front, "down"], env=environ, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    promised = [text.strip() for text in PROMISED.findall(tutorial())]
    assert len(promised) >= 8
    at = 0
    for text in promised:
        found = done.stdout.find(text, at)
        assert found >= 0, f"{text!r} does not come, in that order:\n{done.stdout}"
        at = found
    assert done.stdout.count("--\n", at) == len(programs()) >= 3
    assert "|  s1|" in done.stdout[at:]
