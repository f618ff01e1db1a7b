"""An agent runs beside every server, so it does not load pyarrow: importing that alone would cost it 30 MB."""

from __future__ import annotations

import subprocess
import sys

PROCESS = ("shoal.cli.agent", "shoal.channels.agent.process")
LOADED_LATER = (
    *("shoal.channels.agent.session", "shoal.channels.agent.core", "shoal.channels.agent.metrics"),
    *("shoal.channels.telemetry.analyzer", "shoal.channels.agent.monitor", "shoal.coordination.redis"),
)

SCRIPT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sorted({"pyarrow", "pandas", "pyspark"} & sys.modules.keys()))
"""


def test_the_modules_of_an_agent_leave_pyarrow_out() -> None:
    command = [sys.executable, "-c", SCRIPT, *PROCESS, *LOADED_LATER]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == []
