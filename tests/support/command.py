"""Commands of `shoal` in the test's own process, in a thread: the test's event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from shoal import cli


async def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    capsys.readouterr()
    status = await asyncio.to_thread(cli.main, words)
    said = capsys.readouterr()
    return status, said.out, said.err


async def run_json_command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """Exit status and facts. A command that prints no facts fails the test with what it says instead."""
    status, out, err = await run_command(capsys, *words, "--json")
    lines = out.splitlines()
    assert len(lines) == 1, f"shoal {' '.join(words)}: {out}{err}"
    facts: dict[str, Any] = json.loads(lines[0])
    return status, facts
