"""The metrics pages of a local cluster: one setting, one port for each process.

Owns the numbering, so that `metrics_port` P serves the whole cluster, and the file of targets for Prometheus:

    P, P + 1, ...      balancer-1, balancer-2, ...
    P + 10 + N         the agent of server sN
    P + 1010 + N       the agent of store qN

Ports are checked before anything starts. The file `metrics-targets.json` in the state directory lists the pages that
exist, in the format of Prometheus's file service discovery.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from typing import Final

import msgspec

from shoal.errors import PortInUseError
from shoal.logs import get_log

TARGETS_FILE: Final = "metrics-targets.json"
FIRST_AGENT: Final = 10
"""Offset of the agents' ports, after those of the balancers."""
FIRST_STORE_AGENT: Final = 1010
"""The same for the agents of stores, after those of servers."""
SPAN: Final = 1100
"""Ports from the first one on that servers of the cluster do not use."""
_PORT_MAX: Final = 65535
_log: Final = get_log(__name__)


class MetricsPorts(msgspec.Struct, frozen=True):
    """The ports of one cluster; port 0 means no pages."""

    port: int = 0
    host: str = "127.0.0.1"

    def of(self, process: str) -> int:
        """The port of a process, by its name; 0 if it has no page."""
        kind, _, id = process.partition("-")
        number = int(found[0]) if (found := re.findall(r"\d+$", id)) else 0
        if not self.port or not number:
            return 0
        first = FIRST_STORE_AGENT if id.startswith("q") else FIRST_AGENT
        port = self.port + (number - 1 if kind == "balancer" else first + number)
        return port if port <= _PORT_MAX else 0

    def reserved(self) -> set[int]:
        """Ports that servers of the cluster must not use."""
        return set(range(self.port, min(self.port + SPAN, _PORT_MAX + 1))) if self.port else set()

    def check(self, processes: Iterable[str]) -> None:
        """Raises PortInUseError if the port of one of these processes is taken."""
        for process in processes:
            port = self.of(process)
            if port and not self._is_free(port):
                raise PortInUseError(
                    f"port {port}, for the metrics of {process}, is in use",
                    do=f"set metrics_port (SHOAL_METRICS_PORT) to another port than {self.port}, or to 0 for no pages",
                )

    def free(self, process: str) -> int:
        """The port of a process that is added later; 0, with a warning, if it is taken."""
        port = self.of(process)
        if port and not self._is_free(port):
            _log.warning("no metrics page: its port is in use", process=process, port=port)
            return 0
        return port

    def targets(self, processes: Iterable[str]) -> bytes:
        """The content of the file of targets."""
        pages = [
            {"targets": [f"{self.host}:{port}"], "labels": {"process": process}}
            for process in processes
            if (port := self.of(process))
        ]
        return msgspec.json.format(msgspec.json.encode(pages), indent=2) + b"\n"

    def _is_free(self, port: int) -> bool:
        with socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, port))
            except OSError:
                return False
            return True
