"""A soak of channels or moves: rounds with faults, and with requested moves.

Owns what happens during the load of such a round, and the sum over rounds. The phases of a round are in `rounds`; the
last part of the load is without faults.

A soak that is longer than `ROUND_S_MAX` has several rounds. That limits logs and memory, and no publisher is silent so
long that its stream expires and its sequence numbers start again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import hiredis
import msgspec

from shoal.cluster.acl import READER
from shoal.cluster.cluster_timeouts import Timing
from shoal.cluster.local import LocalCluster
from shoal.cluster.state import ClusterState
from shoal.errors import ShoalError
from shoal.lab.experiments.real.limited_cluster import place_channels
from shoal.lab.harness import Stop
from shoal.lab.soak.faults import FaultInjector
from shoal.lab.soak.load_shape import IDLE_CHANNELS, LoadShape, draw, draw_burst_shape, with_probes
from shoal.lab.soak.move_requests import MoveRequester, start_moves
from shoal.lab.soak.outcome import BaseOutcome, SoakOptions, SoakOutcome
from shoal.lab.soak.round_log import CornerMet, Problem
from shoal.lab.soak.rounds import SETTLE_S_MAX, BaseRound, Tell
from shoal.load.kinds import CHANNEL
from shoal.load.record import DATA_FIELD, decode
from shoal.load_kinds import KINDS
from shoal.runtime import PRODUCTION
from shoal.wire.blocking_connection import ask
from shoal.wire.envelope import TELEMETRY_KEY

ROUND_S_MAX: Final = 60.0
CERTIFICATE_S: Final = 30.0
"""Validity of certificates in a soak with TLS: short, so that they are renewed while messages flow."""
RESTART_PAUSE_S_MAX: Final = 1.0
"""Without this limit the supervisor would wait longer and longer before it restarts a process that is killed often."""


async def run_soak(options: SoakOptions, tell: Tell) -> SoakOutcome:
    """Runs all rounds."""
    outcome = SoakOutcome(options)
    began = time.monotonic()
    rounds = math.ceil(options.seconds / ROUND_S_MAX)
    for number in range(rounds):
        with round_directory(outcome) as directory:
            moves = options.moves * (number + 1) // rounds - options.moves * number // rounds
            part = msgspec.structs.replace(options, moves=moves, seconds=options.seconds / rounds)
            one = Round(part, options.seed + number, directory, tell)
            outcome.add(await one.execute(), one.kills, one.forwarded)
    outcome.seconds = time.monotonic() - began
    return outcome


@contextlib.contextmanager
def round_directory(outcome: BaseOutcome) -> Iterator[Path]:
    """A directory for the logs of a round; it is kept if the round has violations."""
    directory = Path(tempfile.mkdtemp(prefix="shoal-soak-"))
    before = outcome.report.violation_count
    try:
        yield directory
    finally:
        if outcome.report.violation_count > before:
            outcome.kept.append(directory)
        else:
            shutil.rmtree(directory, ignore_errors=True)


class Round(BaseRound):
    """A round with faults, or with requested moves."""

    def __init__(self, options: SoakOptions, seed: int, directory: Path, tell: Tell) -> None:
        super().__init__(_shape(options, seed), options.severity, directory, tell)
        self.forwarded = 0
        self._options = options
        self._requester: MoveRequester | None = None
        self._faults: FaultInjector | None = None

    @property
    def kills(self) -> int:
        """Kills of agents, servers and the coordinator."""
        return self._faults.kills if self._faults else 0

    def make_cluster(self, directory: Path) -> LocalCluster:
        """A cluster whose supervisor restarts processes quickly."""
        options = self._options
        timing = Timing(restart_pause_s_max=RESTART_PAUSE_S_MAX, certificate_s=CERTIFICATE_S)
        return LocalCluster(options.servers, directory, limits=options.limits, timing=timing, tls=options.tls or None)

    async def prepare(self, cluster: LocalCluster, stack: contextlib.AsyncExitStack) -> None:
        """Places channels, and follows the plan if there will be moves."""
        placements = {channel.name: channel.placement for channel in self.shape.channels if channel.placement}
        await place_channels(cluster, placements)
        for placement in placements.values():
            self.log.write(CornerMet(f"placement {placement.mode}", 1))
        if self._options.protocol == "moves":
            moves = start_moves(cluster, self.shape, self._options, self.directory)
            self.follower = self._requester = await stack.enter_async_context(moves)
            self.places = self._requester.places

    async def load(self, cluster: LocalCluster) -> None:
        """Faults are injected, and channels move."""
        seconds = self.shape.seconds
        faults = FaultInjector(cluster, self._options.faults, seconds, self.shape.rng("faults"), self.log)
        self._faults = faults
        injecting = asyncio.create_task(faults.run())
        requesting = asyncio.create_task(self._requester.run(self.load_began)) if self._requester else None
        try:
            await self.until_load(seconds, "load")
            await self.end_moves()
            for role in ("watch", "publish"):
                self.send(Stop(), role)
            if not await self.until(injecting.done, SETTLE_S_MAX, "recovery"):
                self.log.write(
                    Problem(f"unsettled: the cluster had not recovered {SETTLE_S_MAX:g} s after the last fault")
                )
        finally:
            tasks = [task for task in (injecting, requesting) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for corner, times in faults.counts.items():
            self.log.write(CornerMet(corner, times))

    async def finish(self, cluster: LocalCluster) -> None:
        """Ends the log of moves."""
        if self._requester is not None:
            await self._requester.finish()
            self.forwarded = await asyncio.to_thread(_count_forwarded, cluster.state)


def _shape(options: SoakOptions, seed: int) -> LoadShape:
    if options.burst:
        return draw_burst_shape(seed, options.seconds, options.burst, options.limits)
    servers = [f"s{number}" for number in range(1, options.servers + 1)]
    idle = IDLE_CHANNELS if options.moves else 0
    shape = draw(seed, options.seconds, servers, options.subscribers, options.limits, idle)
    return with_probes(shape, servers) if options.faults.freeze else shape


def _count_forwarded(state: ClusterState) -> int:
    """Messages that agents have forwarded, from the telemetry on the servers that answer. Blocks.

    What an agent counted in the second in which it was killed is not included.
    """
    total = 0
    book = PRODUCTION.with_tls(state.tls_for(READER)).address_book
    for to in map(book.reach, state.server_addresses()):
        login = READER, state.passwords[READER]
        try:
            entries: Any = ask(to.host, to.port, *login, "XRANGE", TELEMETRY_KEY, "-", "+", dial=to.dial)
        except (ShoalError, hiredis.ReplyError):
            continue
        for _, fields in entries:
            record = decode(dict(zip(fields[::2], fields[1::2], strict=True))[DATA_FIELD], KINDS)
            total += int(record.tables[CHANNEL]["forwarded"].sum())
    return total
