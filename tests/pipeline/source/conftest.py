"""Modules of these tests that import PySpark cannot be collected without it."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("pyspark") else ["test_planning.py", "test_refusals.py", "test_writer.py"]
