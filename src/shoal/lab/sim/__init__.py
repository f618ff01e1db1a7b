"""The simulator: shipped code on a simulated network with model servers, from a seed.

    from shoal.lab.sim import *
    from shoal.lab.sim.world.process import Processes
    from shoal.queues.keyspace.resp import CommandReader
    from shoal.wire.commands import encode_commands
    from shoal.wire.connection import Connection

    class Subscriber:                                     # a Dialer: connected, failed, received, lost
        def __init__(self, network: Network) -> None:
            self.network, self.node, self.frames = network, network.node("client-1"), []
            self.node.on_restart = self.start             # after a crash: a new process
            self.start()

        def start(self) -> None:
            self.network.connect(self.node, "redis-0", self)

        def connected(self, end: LinkEnd) -> None:       # links carry bytes
            self.reader = CommandReader()
            end.send(encode_commands([(b"HELLO", b"3"), (b"SUBSCRIBE", b"tile.1")]))
            self.node.after(5.0, self.ping, end)          # by this node's clock; not after a crash

        def ping(self, end: LinkEnd) -> None:
            end.send(encode_commands([(b"PING",)]))       # dropped if the connection has ended

        def failed(self, reason: str) -> None:            # "refused", "timeout"
            self.node.after(0.5, self.start)

        def received(self, end: LinkEnd, data: bytes) -> None:     # in any pieces
            self.frames += self.reader.read(data)

        def lost(self, end: LinkEnd, reason: str) -> None:         # "closed", "reset", "timeout"
            self.node.after(0.1, self.start)

    async def publish(runtime) -> None:                   # shipped code: asyncio and a Runtime, nothing else
        coordinator = await runtime.coordinator("shoal://coordinator:1", timeout_s=2.0)
        await coordinator.put("plan/ring", b"...", 0)
        connection = Connection(
            "redis-0", 1, username=None, password=None, name="publisher", dial=runtime.dial
        )
        await connection.open()
        while True:
            await connection.ask((b"PUBLISH", b"tile.1", b"north"))
            await asyncio.sleep(1.0)                      # virtual seconds, by the clock of its node

    world = World(seed=17)
    network = Network(world, FaultOptions.draw(world.rng("options")))
    server = RedisNode(network, "redis-0", RedisOptions(pubsub_limit=BufferLimit(65536, 16384, 5.0)))
    coordinator = ModelCoordinator(network)
    client = Subscriber(network)
    processes = Processes(network, coordinator)
    process = processes.new(network.node("publisher"))
    process.begin(publish(process.runtime))
    nodes = ["redis-0", "client-1", "coordinator"]
    faults = Faults(network, crashable=nodes, pausable=nodes, partitionable=nodes)
    world.at(10.0, faults.start)
    world.run(until=60.0)                                 # safety: everything that arrives must be right
    faults.stop()                                         # heals everything
    world.run(until=90.0)                                 # liveness: every promise must be kept
    processes.close()

Owns: nothing itself; it exports what a scenario needs. Production code never imports it.
"""

from shoal.lab.sim.models.coordinator import CoordinatorOptions, ModelClient, ModelCoordinator
from shoal.lab.sim.models.redis import BufferLimit, ModelRedis, RedisOptions
from shoal.lab.sim.models.redis_node import RedisNode
from shoal.lab.sim.world.fault_options import FaultOptions
from shoal.lab.sim.world.faults import Faults
from shoal.lab.sim.world.link import LinkEnd
from shoal.lab.sim.world.network import Dial, Dialer, Network, Partition
from shoal.lab.sim.world.node import Node
from shoal.lab.sim.world.wires import Handler
from shoal.lab.sim.world.world import Event, EventBudgetExceededError, World

__all__ = [
    "BufferLimit",
    "CoordinatorOptions",
    "Dial",
    "Dialer",
    "Event",
    "EventBudgetExceededError",
    "FaultOptions",
    "Faults",
    "Handler",
    "LinkEnd",
    "ModelClient",
    "ModelCoordinator",
    "ModelRedis",
    "Network",
    "Node",
    "Partition",
    "RedisNode",
    "RedisOptions",
    "World",
]
