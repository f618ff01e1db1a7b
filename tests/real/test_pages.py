"""The README's example and the tutorial's programs run as printed, against a real cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from tests.support.redis_server import RedisServer

from shoal.cluster.acl import ROLES

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
REDIS_SURFACE = ROOT / "docs" / "redis-surface.md"
OPERATIONS = ROOT / "docs" / "operations.md"
RUN_TIMEOUT_S = 110.0


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found, f"{page.name} has no {language} block"
    return found


def run(program: str, url: str, directory: Path | None = None) -> str:
    """What a program prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        env={**os.environ, "SHOAL_URL": url, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_of_the_readme_prints_what_the_readme_says(url: str) -> None:
    assert run(blocks(README, "python")[0], url) == blocks(README, "text")[0]


def test_the_example_of_the_readme_is_short() -> None:
    lines = [line for line in blocks(README, "python")[0].splitlines() if line.strip()]
    assert len(lines) <= 20


@pytest.mark.parametrize("number", range(len(blocks(TUTORIAL, "python"))))
def test_programs_of_the_tutorial_run(number: int, url: str) -> None:
    printed = run(blocks(TUTORIAL, "python")[number], url)
    assert printed
    assert "None" not in printed.splitlines()  # as the step with redis-py's surface did


def test_the_program_about_redis_py_prints_what_its_comment_says(url: str) -> None:
    """It printed a subscribe message first."""
    program = blocks(REDIS_SURFACE, "python")[0].replace("shoal://client:password@host:7400", url)
    shown = program.split("print(message)  # ")[1].strip()
    body = f"{program}        break\nawait client.aclose()\n".replace("\n", "\n    ")
    assert run(f"import asyncio\nasync def main():\n    {body}\nasyncio.run(main())\n", url) == f"{shown}\n"


def test_the_programs_of_a_cluster_by_hand_write_users_that_servers_accept(tmp_path: Path) -> None:
    """The one for stores raised a TypeError."""
    programs = blocks(OPERATIONS, "python")
    (users,) = (program for program in programs if "coordinator_acl_file(" in program)
    (store,) = (program for program in programs if "store_acl_file(" in program)
    printed = run(users + store, "", tmp_path)
    passwords = dict(line.split() for line in printed.splitlines())
    assert set(passwords) == set(ROLES)
    for name in ("coordinator", "server", "store"):
        lines = (tmp_path / f"{name}.acl").read_text().splitlines()
        with RedisServer(users=[line.removeprefix("user ") for line in lines]) as server:
            for role, password in passwords.items():
                with redis.Redis(server.host, server.port, username=role, password=password) as client:
                    assert client.ping()
