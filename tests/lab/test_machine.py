"""What is read about the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from shoal.lab.machine import process_cpu_s


def test_cpu_of_a_process_is_not_counted_in_steps_of_10_ms() -> None:
    for _ in range(5):
        until = time.process_time() + 0.003
        while time.process_time() < until:
            pass
        before = time.process_time()
        found = process_cpu_s(os.getpid())
        assert before - 1e-4 <= found <= time.process_time() + 1e-4


def test_a_process_that_has_ended_has_used_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert process_cpu_s(child.pid) == 0.0
