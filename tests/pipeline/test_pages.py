"""The page about the pipeline: its tutorial says what the page promises, and its programs run.

All of it runs in this process, in the session that tests share: a command of its own would start Java again. A shell
runs the commands that are not on Spark.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from shoal import cli

PAGE: Final = Path(__file__).parents[2] / "docs" / "pipeline.md"
PROMISED: Final = re.compile(r"#->(.*)")
ON_SPARK: Final = re.compile(r"^(shoal pipeline .*)$", re.MULTILINE)
DOWN: Final = "shoal down\n"
WINDOWS_S: Final = 5.0


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def tutorial() -> str:
    """The commands of the tutorial."""
    page = PAGE.read_text(encoding="utf-8")
    return "\n".join(blocks(page[page.index("## Tutorial") : page.index("## Sessions")], "sh"))


def run_commands(script: str) -> None:
    """Runs commands as a shell would, those on Spark in this process. The first failure ends the run."""
    for commands in ON_SPARK.split(script):
        if ON_SPARK.match(commands):
            words = shlex.split(commands, comments=True)[1:]
            if words[:2] == ["pipeline", "load"]:  # elsewhere Java takes as long to start; windows are complete by then
                time.sleep(WINDOWS_S)
            assert cli.main(words) == 0, words
        else:
            subprocess.run(["bash", "-eo", "pipefail", "-c", commands], check=True)


@pytest.fixture
def front_door(spark_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command `shoal`, and the directories of the session's Java: relative names mean the same in both."""
    command = tmp_path / "shoal"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m shoal.cli "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SHOAL_STATE_DIR", str(spark_directory / "state"))
    monkeypatch.chdir(spark_directory)
    yield
    subprocess.run([command, "down"], capture_output=True, check=False)


@pytest.mark.usefixtures("spark", "front_door")
def test_the_tutorial_and_the_programs_of_the_page_run(capfd: pytest.CaptureFixture[str]) -> None:
    """In an empty directory; the texts after `#->` must be printed, in that order."""
    script = tutorial()
    programs = blocks(PAGE.read_text(encoding="utf-8"), "python")
    assert script.endswith(DOWN)
    assert len(programs) >= 3
    run_commands(script.removesuffix(DOWN))
    said = capfd.readouterr().out
    promised = [text.strip() for text in PROMISED.findall(script)]
    assert len(promised) >= 8
    at = 0
    for text in promised:
        at = said.find(text, at)
        assert at >= 0, f"{text!r} does not come, in that order:\n{said}"
    for program in programs:
        exec(compile(program, PAGE.name, "exec"), {"__name__": "page"})
    assert "|  s1|" in capfd.readouterr().out
    run_commands(DOWN)
