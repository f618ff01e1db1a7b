"""What a balancer loads: several run in every cluster, so each import counts."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from importlib.util import find_spec
import pyarrow as pa
from shoal.leader.process import leave_pandas_out
installed = find_spec("pandas") is not None
leave_pandas_out()
assert pa.array([1, 2]).to_pylist() == [1, 2]
assert pa.table({"a": [{"b": 1}]}).num_rows == 1
assert "pandas" not in sys.modules
assert (find_spec("pandas") is not None) is installed
"""


def test_pyarrow_does_not_load_pandas_and_others_still_can() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
