"""What the flow simulator assumes about servers, moves and the pool: every figure, with its unit and its source.

Owns the records; runs nothing.

The default server is a Redis on one core of an ordinary machine, as measured with Shoal's clients: 1.5 million
publications a second without subscribers, 1.0 to 1.2 million deliveries a second in a fan-out.
"""

from __future__ import annotations

from typing import Final

import msgspec

from shoal.errors import ConfigError


class ServerModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of server: its capacity, the cost of a message, and how it fails."""

    capacity_bytes_per_s: float = 125e6
    """Configured capacity (T in the paper's load ratio). The default is a link of 1 Gbit/s."""

    fail_ratio: float = 1.15
    """Load ratio above which it cannot send everything, as the paper observed. The real limit is this times the
    capacity, and the utilisation is the load ratio divided by this."""

    cpu_capacity: float = 1.0
    """Cores that carry messages."""

    publication_cpu_s: float = 0.67e-6
    """CPU time to receive one publication."""

    delivery_cpu_s: float = 0.9e-6
    """CPU time to deliver one message to one subscriber."""

    connection_messages_per_s: float = 600e3
    """What one connection to a subscriber can take."""

    connection_buffer_bytes: float = 8e6
    """Output buffer of one connection: Redis's soft limit for pub/sub clients. A client that exceeds it is cut off."""

    output_buffer_bytes: float = 256e6
    """Output buffers of all connections together. A server that exceeds this fails."""

    recovery_s: float = 5.0
    """A failed server delivers nothing for at least this long."""

    utilisation_max: float = 0.99
    """Utilisation used for the mean wait of a queue is capped here. Above it the backlog describes what happens."""

    @property
    def limit_bytes_per_s(self) -> float:
        """The rate that it can really send."""
        return self.capacity_bytes_per_s * self.fail_ratio

    def validate(self) -> None:
        """Raises ConfigError if a value is impossible."""
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise ConfigError(f"server model: {name} is {getattr(self, name)!r}", do="give a number above 0")
        if self.utilisation_max >= 1:
            raise ConfigError("server model: utilisation_max must be below 1", do="give 0.99")


class MoveModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a decision is carried out."""

    delay_s: int = 2
    """From the end of the window until a channel is on its new servers: late telemetry records, the plan, and the
    subscribers, who move first."""

    forward_s: int = 1
    """How long some clients still use the old servers after that."""

    forward_share: float = 0.05
    """What is forwarded or repeated for those clients, as a share of the channel's load, on the servers that it leaves
    and enters. Shoal's moves forward almost nothing; the paper's forward everything."""

    control_messages_per_client: float = 8.3
    """Control messages of a move for each client of the channel, as counted by `shoal soak moves`."""


class PoolModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many servers there may be, and how long they take to start."""

    servers_first: int = 1
    servers_min: int = 1
    servers_max: int = 8
    start_s: int = 5
    """From the request for a server until it joins."""
    server_hour_cost: float = 1.0


class MeasureModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How load is measured."""

    noise: float = 0.0
    """Standard deviation of the measured rates of each channel and server, as a share of their value."""


DEFAULT_SERVER: Final = ServerModel()
DEFAULT_MOVES: Final = MoveModel()
DEFAULT_POOL: Final = PoolModel()
DEFAULT_MEASURES: Final = MeasureModel()
