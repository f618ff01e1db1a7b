"""An agent runs beside every server, so it loads neither numba nor pyarrow: importing them would cost it 120 MB."""

from __future__ import annotations

import subprocess
import sys

from tests.support.import_graph import ImportGraph

COMMAND = "shoal.cli.agent"
"""The other commands that `shoal.cli` imports are not loaded in an agent."""

PROCESS = "shoal.channels.agent.process"

SCRIPT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sorted({"llvmlite", "numba", "pandas", "pyarrow", "pyspark"} & sys.modules.keys()))
"""


def heavy_packages(*modules: str) -> list[str]:
    """The heavy packages that a process has loaded after it has imported these modules."""
    command = [sys.executable, "-c", SCRIPT, *modules]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_the_modules_of_an_agent_leave_heavy_packages_out() -> None:
    modules = ImportGraph().reach(PROCESS, for_typing=False)
    assert {"shoal.channels.agent.core", "shoal.coordination.redis"} <= modules.keys()  # imported in functions
    assert heavy_packages(COMMAND, *modules) == []


def test_a_module_that_loads_pyarrow_is_noticed() -> None:
    assert heavy_packages("shoal.load.window") == ["pyarrow"]
