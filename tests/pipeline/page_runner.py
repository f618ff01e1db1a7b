"""Runs the page about the pipeline in one session: the commands of its tutorial, in order, and then its programs.

    python -m tests.pipeline.page_runner

Works in the current directory, on the cluster that the tutorial starts in `SHOAL_STATE_DIR`. Commands on Spark run in
this process, since each would start a session of its own; a shell runs the others. Every program begins with a line
`--`. The first failure ends the run.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Final

from shoal import cli
from shoal.pipeline.session import running

PAGE: Final = Path(__file__).parents[2] / "docs" / "pipeline.md"
DOWN: Final = "shoal down\n"
ON_SPARK: Final = re.compile(r"^(shoal pipeline .*)$", re.MULTILINE)


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def tutorial() -> str:
    """The commands of the tutorial."""
    page = PAGE.read_text(encoding="utf-8")
    return "\n".join(blocks(page[page.index("## Tutorial") : page.index("## Sessions")], "sh"))


def programs() -> list[str]:
    """The programs of the page."""
    return blocks(PAGE.read_text(encoding="utf-8"), "python")


def run_commands(script: str) -> None:
    """Runs commands as a shell would, those on Spark in this process."""
    for commands in ON_SPARK.split(script):
        if ON_SPARK.match(commands):
            words = shlex.split(commands, comments=True)[1:]
            if cli.main(words) != 0:
                raise SystemExit(f"failed: shoal {' '.join(words)}")
        else:
            subprocess.run(["bash", "-eo", "pipefail", "-c", commands], check=True)


def main() -> None:
    """Runs everything; the cluster of the tutorial ends last."""
    script = tutorial()
    assert script.endswith(DOWN)
    with running():
        run_commands(script.removesuffix(DOWN))
        for program in programs():
            print("--")
            exec(compile(program, PAGE.name, "exec"), {"__name__": "page"})
        run_commands(DOWN)


if __name__ == "__main__":
    main()
