"""`shoal sim --json` prints the same digest for the same seeds, in any process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from shoal.lab.sim.campaign import CHUNK_SEEDS
from shoal.lab.sim.scenarios.channels import run_seed
from shoal.rules import without

SEEDS = CHUNK_SEEDS + 1
"""Enough for two workers to have something to do."""

DIGESTS = """
from shoal.lab.sim.scenarios import balancer, engine, moves, queue, recording
print("moves", moves.run_seed(35).digest.hex())
print("recording", recording.run_seed(0).digest.hex())
print("engine", engine.run_seed(3).digest.hex())
print("queue", queue.run_seed(3).digest.hex())
print("balancer", balancer.run_seed(2, variant={"rests": False}).digest.hex())
"""
"""Of the protocols that `campaign` does not run. The balancer does not wait for rest, which takes most of its time."""


def run_python(*words: str, hash_seed: int) -> list[str]:
    """The lines that Python prints in a separate process."""
    done = subprocess.run(
        [sys.executable, *words],
        env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def campaign(hash_seed: int, workers: int) -> dict[str, Any]:
    """The facts of a campaign."""
    words = ["sim", "channels", "--seeds", str(SEEDS), "--from-seed", "15", "--workers", str(workers), "--json"]
    facts: dict[str, Any] = json.loads(run_python("-m", "shoal.cli", *words, hash_seed=hash_seed)[-1])
    del facts["seconds"]
    return facts


def test_neither_hash_seed_nor_workers_change_what_happens() -> None:
    alone = campaign(hash_seed=1, workers=1)
    assert len(alone["digest"]) == 32
    assert alone == campaign(hash_seed=4242, workers=2)


def test_every_other_protocol_has_the_same_digests_with_another_hash_seed() -> None:
    digests = run_python("-c", DIGESTS, hash_seed=1)
    assert [line.split()[0] for line in digests] == ["moves", "recording", "engine", "queue", "balancer"]
    assert digests == run_python("-c", DIGESTS, hash_seed=4242)


def test_another_seed_or_rule_has_another_digest() -> None:
    digests = {run_seed(18).digest, run_seed(19).digest, run_seed(19, without("handshake")).digest}
    assert len(digests) == 3
    assert run_seed(19).digest in digests
