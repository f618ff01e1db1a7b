"""Commands of `shoal`: in the test's own process, in a thread, while its event loop goes on; or as a process, for
commands that handle signals or are killed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from asyncio.subprocess import Process
from typing import Any, Final

import pytest

from shoal import cli

PROCESS_S: Final = 120.0
"""A time that no healthy command of a test needs."""


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


async def start_process(*words: str) -> Process:
    """A command with `--json` as a process of its own."""
    command = [sys.executable, "-m", "shoal.cli", *words, "--json"]
    return await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


async def run_json_process(*words: str) -> tuple[int, dict[str, Any]]:
    """Exit status and facts of a command that runs as a process of its own."""
    process = await start_process(*words)
    out, err = await asyncio.wait_for(process.communicate(), PROCESS_S)
    assert out, f"shoal {' '.join(words)}: {err.decode()}"
    facts: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert process.returncode is not None
    return process.returncode, facts
