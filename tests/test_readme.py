"""The README's example runs as it stands there, against a real cluster, and prints what the README says."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from shoal.cluster.local import LocalCluster

README = Path(__file__).parent.parent / "README.md"
RUN_TIMEOUT_S = 60.0


def block(language: str) -> str:
    """The first fenced block of a language."""
    match = re.search(rf"^```{language}\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert match is not None, f"README.md has no {language} block"
    return match[1]


async def test_the_example_prints_what_the_readme_says() -> None:
    async with LocalCluster(servers=2) as cluster:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", block("python")],
            env={**os.environ, "SHOAL_URL": cluster.url},
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == block("text")


def test_the_example_is_short() -> None:
    lines = [line for line in block("python").splitlines() if line.strip()]
    assert len(lines) <= 20
