"""What the flow simulator assumes about servers, moves and the pool: every figure, with its unit and where it is from.

Owns the records and nothing that runs.

The default server is a Redis on one core of an ordinary machine, as measured with clients of our own: 1.5 million
publications a second without subscribers, 1.0 to 1.2 million deliveries a second in a fan-out.
"""

from __future__ import annotations

from typing import Final

import msgspec

from shoal.errors import ConfigError


class ServerModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of server: what it can send, what a message costs it, and how it gives up."""

    capacity_bytes_per_s: float = 125e6
    """What it is said to be able to send (T of the paper's load ratio): the default is a link of 1 Gbit/s."""

    fail_ratio: float = 1.15
    """Load ratio past which it cannot send what it is given: the paper's observation. Its real limit is this times
    its capacity, and its utilisation is the load ratio divided by this."""

    cpu_capacity: float = 1.0
    """Cores that carry messages."""

    publication_cpu_s: float = 0.67e-6
    """Time of a core for receiving one publication."""

    delivery_cpu_s: float = 0.9e-6
    """Time of a core for delivering one message to one subscriber."""

    connection_messages_per_s: float = 600e3
    """What one connection to a subscriber can take."""

    connection_buffer_bytes: float = 8e6
    """What one connection may have waiting: Redis's soft limit for pub/sub clients. Past it the client is cut off."""

    output_buffer_bytes: float = 256e6
    """What may wait on all connections together. Past it the server fails."""

    recovery_s: float = 5.0
    """For how long a server that failed delivers nothing."""

    utilisation_max: float = 0.99
    """Above this a queue's mean wait is no longer what a second shows: what goes on is in the backlog."""

    @property
    def limit_bytes_per_s(self) -> float:
        """What it really can send."""
        return self.capacity_bytes_per_s * self.fail_ratio

    def validate(self) -> None:
        """Raise ConfigError if a value cannot be."""
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise ConfigError(f"server model: {name} is {getattr(self, name)!r}", do="give a number above 0")
        if self.utilisation_max >= 1:
            raise ConfigError("server model: utilisation_max must be below 1", do="give 0.99")


class MoveModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a decision takes to come true."""

    delay_s: int = 2
    """From the end of the window to the moment at which a channel is at its new servers: records that are late, the
    plan, and the subscribers who go first."""

    forward_s: int = 1
    """For how long after that some clients still are where it was."""

    forward_share: float = 0.05
    """What is forwarded or repeated for them meanwhile, as a share of the channel's load, on the servers that it leaves
    and comes to. In our protocol of moves hardly anything is; in the paper's everything was."""

    control_messages_per_client: float = 8.3
    """Messages that a move takes for each client of the channel, as `shoal soak moves` counts them."""


class PoolModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many servers there may be, and how they come."""

    servers_first: int = 1
    servers_min: int = 1
    servers_max: int = 8
    start_s: int = 5
    """From asking for a server to its joining."""
    server_hour_cost: float = 1.0


class MeasureModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How loads are seen."""

    noise: float = 0.0
    """Spread of the measured rates of each channel and server, as a share of their value."""


DEFAULT_SERVER: Final = ServerModel()
DEFAULT_MOVES: Final = MoveModel()
DEFAULT_POOL: Final = PoolModel()
DEFAULT_MEASURES: Final = MeasureModel()
