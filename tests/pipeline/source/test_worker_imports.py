"""What Spark's Python workers load with the source: each query starts several, and most of their time is imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("pandas", "numba", "redis", "shoal.bus")


@pytest.mark.spark
def test_the_source_loads_neither_pandas_nor_the_client_of_the_bus() -> None:
    program = f"import sys, pyspark_shoal; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
