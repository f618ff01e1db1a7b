"""The programs of the page about the pipeline run, one after the other, in one session beside a real cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.cluster_thread import ClusterThread
from tests.support.spark import need_spark

from shoal.cluster.local import LocalCluster

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "pipeline.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
RUN_TIMEOUT_S = 110.0

ALL = """
import sys
from shoal.pipeline.session import running
with running():
    for program in sys.argv[1:]:
        print("--")
        exec(compile(program, "docs/pipeline.md", "exec"), {"__name__": "page"})
"""


async def root_of(cluster: LocalCluster) -> str:
    return str(cluster.directory.root)


@pytest.mark.timeout(180)
def test_the_programs_of_the_page_run(tmp_path: Path) -> None:
    need_spark()
    with ClusterThread(servers=2) as cluster:
        environ = {**os.environ, "SHOAL_STATE_DIR": cluster.call(root_of), "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(
            [sys.executable, "-c", ALL, *PROGRAMS],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("--\n") >= len(PROGRAMS) >= 3
    assert "|  s1|" in done.stdout


TUTORIAL_TIMEOUT_S = 280.0
EXPECTED = re.compile(r"#->(.*)")


@pytest.mark.timeout(300)
def test_the_tutorial_of_the_page_runs(tmp_path: Path) -> None:
    """Every command of it, in an empty directory, in order; and each says what the page promises."""
    need_spark()
    page = PAGE.read_text(encoding="utf-8")
    section = page[page.index("## Tutorial") : page.index("## Sessions")]
    script = "\n".join(re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE))
    front = tmp_path / "bin" / "shoal"
    front.parent.mkdir()
    front.write_text(f'#!/bin/sh\nexec {sys.executable} -m shoal.cli "$@"\n')
    front.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    environ = {
        **os.environ,
        "PATH": f"{front.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "SHOAL_STATE_DIR": str(tmp_path / "state"),
    }
    try:
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script],
            cwd=work,
            env=environ,
            capture_output=True,
            text=True,
            timeout=TUTORIAL_TIMEOUT_S,
            check=False,
        )
    finally:
        subprocess.run([str(front), "down"], env=environ, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    promised = [text.strip() for text in EXPECTED.findall(script)]
    assert len(promised) >= 8
    at = 0
    for text in promised:
        found = done.stdout.find(text, at)
        assert found >= 0, f"{text!r} does not come, in that order:\n{done.stdout}"
        at = found
