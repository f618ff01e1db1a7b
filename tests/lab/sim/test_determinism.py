"""`shoal sim --json` prints the same digest for the same seeds, whatever process runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from shoal.lab.sim.campaign import CHUNK_SEEDS
from shoal.lab.sim.scenarios.channels import run_seed
from shoal.rules import without

SEEDS = CHUNK_SEEDS + 1
"""Enough for two workers to have something to do."""


def campaign(protocol: str, first: int, hash_seed: int, workers: int) -> dict[str, Any]:
    """The facts of a campaign in a process of its own."""
    words = ["sim", protocol, "--seeds", str(SEEDS), "--from-seed", str(first), "--workers", str(workers), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "shoal.cli", *words],
        env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    del facts["seconds"]
    return facts


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("protocol", "first"), [("channels", 15), ("moves", 4)])
def test_neither_hash_seed_nor_workers_change_what_happens(protocol: str, first: int) -> None:
    alone = campaign(protocol, first, hash_seed=1, workers=1)
    shared = campaign(protocol, first, hash_seed=4242, workers=2)
    assert len(alone["digest"]) == 32
    assert alone == shared


def test_another_seed_or_rule_has_another_digest() -> None:
    digests = {run_seed(18).digest, run_seed(19).digest, run_seed(19, without("handshake")).digest}
    assert len(digests) == 3
    assert run_seed(19).digest in digests
