"""A soak of the data pipeline: recorded channels of very different rates, read by real Spark while everything moves.

Owns the order of the faults and the facts. Faults wait for the jobs and not for the clock, so that they meet jobs that
work, on any machine:

    a server joins -> jobs have read some batches -> the driver is killed (kill -9), another continues ->
    jobs have read some batches -> a server is killed, and comes back without its data -> jobs have read some batches

Channels move all the time. Then publishers stop, a last message closes all windows, and the jobs read what is left. The
checker compares the publishers' log with the output of the jobs (`pipeline_checker`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from shoal.cluster.acl import ADMIN, PIPELINE
from shoal.cluster.cluster_timeouts import Timing
from shoal.cluster.local import LocalCluster
from shoal.errors import CoordinatorUnavailableError
from shoal.history.recording_switch import switch_recording
from shoal.lab.harness import LoadError, LoadProcess, Stop
from shoal.lab.soak.move_requests import COORDINATOR_S_MAX, MoveRequester
from shoal.lab.soak.move_schedule import draw_moves
from shoal.lab.soak.outcome import BaseOutcome
from shoal.lab.soak.pipeline_checker import PipelineReport, ServerKill, check_directory
from shoal.lab.soak.pipeline_orders import (
    CHANNELS,
    JOB_REPORTS,
    PATTERN,
    PUBLISHER_REPORTS,
    JobsDone,
    JobsFailed,
    JobStatus,
    PublisherStatus,
    StartJobs,
    StartPublishing,
)
from shoal.lab.soak.plan_follower import followed
from shoal.lab.soak.round_log import RoundLog
from shoal.lab.soak.rounds import RoundProgress, Tell
from shoal.lab.soak.run import RESTART_PAUSE_S_MAX, round_directory
from shoal.limits import Limits
from shoal.plan.signature import Verifier
from shoal.runtime import PRODUCTION

SERVERS: Final = 3
WINDOW_S: Final = 5
WATERMARK_S: Final = 30
"""Longer than a failover and the healing after it; messages that are recorded later than that are late."""
BATCHES_BETWEEN: Final = 4
"""Batches with rows that the jobs must have had before the next fault."""
MOVES_PER_S: Final = 0.5
BEHIND_MAX: Final = 2_000
"""A server is killed when no job is further behind than this number of entries: what they have not read is lost."""
JOIN_S_MAX: Final = 30.0
"""How long the soak tries to add a server."""
CATCH_UP_S_MAX: Final = 120.0
"""How long the jobs may take for that. Then the server is killed all the same."""
STEP_S_MAX: Final = 600.0
"""How long the jobs may take from one fault to the next."""
POLL_S: Final = 0.1


class PipelineSoakOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the soak."""

    seconds: float
    seed: int
    limits: Limits
    kill_driver: bool = True


class PipelineOutcome(BaseOutcome):
    """The verdict and the counts of a round."""

    def __init__(self, options: PipelineSoakOptions) -> None:
        corners = ["server joined", "server killed", "move asked", "batch", "window closed", "archive batch"]
        super().__init__("pipeline", [*corners, "driver killed"] if options.kill_driver else corners)
        self.verdict = PipelineReport()
        self.status = JobStatus()

    @property
    def moves(self) -> int:
        """Requested moves."""
        return self.exercised["move asked"]

    def judge(self, verdict: PipelineReport, published: int) -> None:
        """Takes the verdict of the round."""
        self.rounds += 1
        self.verdict = verdict
        self.exercised["window closed"] = verdict.windows
        report = self.report
        report.messages, report.deliveries = published, verdict.rows
        report.lost, report.duplicated = verdict.missing, verdict.doubled
        report.gaps_reported = verdict.gaps
        report.violations = [*report.violations, *verdict.violations]
        report.violation_count = len(report.violations)

    def problem(self, text: str) -> None:
        """Something did not happen in time."""
        self.report.violations = [*self.report.violations, text]
        self.report.violation_count += 1

    def more_facts(self) -> dict[str, Any]:
        """What is owed and what the jobs have; see `pipeline_checker`."""
        verdict = self.verdict
        return {
            "owed": verdict.owed,
            "missing": verdict.missing,
            "doubled": verdict.doubled,
            "dropped_late": verdict.dropped_late,
            "confirmed": verdict.confirmed,
            "lost_with_server": verdict.lost_with_server,
            "archived": verdict.archived,
            "counted_in_windows": verdict.counted,
            "rows_past_watermark": self.status.late,
            "query_restarts": self.status.restarts,
        }


class PipelineRound:
    """One cluster, its publishers, and the driver."""

    def __init__(self, options: PipelineSoakOptions, directory: Path, outcome: PipelineOutcome, tell: Tell) -> None:
        self._options = options
        self._directory = directory
        self._outcome = outcome
        self._tell = tell
        self._random = Random(f"pipeline {options.seed}")
        self._kills: list[ServerKill] = []
        self._published = PublisherStatus(0, 0, settled=False)
        self._status = JobStatus()
        self._failed = ""
        self._done = False
        self._began = time.monotonic()
        self._phase = "starting the cluster"

    async def execute(self) -> None:
        """Runs all phases."""
        timing = Timing(restart_pause_s_max=RESTART_PAUSE_S_MAX)
        self._show()
        directory = self._directory / "cluster"
        async with (
            LocalCluster(SERVERS, directory, limits=self._options.limits, timing=timing, tls=False) as cluster,
            contextlib.AsyncExitStack() as stack,
        ):
            _, waiting = await switch_recording(cluster.url_for(ADMIN), PATTERN.encode(), True)
            if waiting:
                raise LoadError(f"the agents of {', '.join(waiting)} do not record")
            self._cluster, self._stack = cluster, stack
            self._publisher = await stack.enter_async_context(self._publishing(cluster))
            requester = await stack.enter_async_context(self._requester(cluster))
            moving = asyncio.create_task(requester.run(time.monotonic()))
            stack.callback(moving.cancel)
            await self._start_driver()
            await self._inject_faults()
            self._phase = "moves end"
            if not await self._until(lambda: requester.settled, STEP_S_MAX):
                self._outcome.problem("unsettled: moves have not ended")
            await self._end()
            self._outcome.exercised["move asked"] = len(requester.ledger.moves)
            await requester.finish()
        self._phase = "checking"
        self._show()
        log = self._directory / "published.log"
        verdict = await asyncio.to_thread(check_directory, self._directory, log, self._kills)
        self._outcome.judge(verdict, self._published.published)

    @contextlib.asynccontextmanager
    async def _requester(self, cluster: LocalCluster) -> AsyncIterator[MoveRequester]:
        """Requests moves until the end of the load."""
        verifier = Verifier(bytes.fromhex(cluster.state.public_key))
        seconds = self._options.seconds
        moves = draw_moves([*CHANNELS], max(2, round(MOVES_PER_S * seconds)), seconds, self._random)
        async with await PRODUCTION.coordinator(cluster.url_for(ADMIN), COORDINATOR_S_MAX) as coordinator:
            log = RoundLog(self._directory / "moves.log")
            requester = MoveRequester(coordinator, verifier, moves, lambda: _members(cluster), self._random, log)
            async with followed(requester):
                yield requester

    @contextlib.asynccontextmanager
    async def _publishing(self, cluster: LocalCluster) -> AsyncIterator[LoadProcess]:
        process = LoadProcess(
            "publisher process",
            "shoal.lab.soak.pipeline_publisher",
            PUBLISHER_REPORTS,
            log=self._directory / "publisher.err",
        )
        process.on(PublisherStatus, self._take_published)
        async with process:
            process.send(StartPublishing(cluster.url, str(self._directory / "published.log")))
            yield process

    def _take_published(self, status: PublisherStatus) -> None:
        self._published = status

    def _take_status(self, status: JobStatus) -> None:
        self._status = status

    def _take_done(self, done: JobsDone) -> None:
        self._status = done.status
        self._done = True

    def _take_failure(self, failed: JobsFailed) -> None:
        self._failed = failed.error

    async def _start_driver(self) -> None:
        """Starts a driver on the checkpoints of the round."""
        process = LoadProcess(
            "Spark driver", "shoal.lab.soak.pipeline_driver", JOB_REPORTS, log=self._directory / "driver.err"
        )
        process.on(JobStatus, self._take_status)
        process.on(JobsFailed, self._take_failure)
        process.on(JobsDone, self._take_done)
        self._status, self._failed = JobStatus(), ""
        self._driver = await self._stack.enter_async_context(process)
        directory = str(self._directory)
        url = self._cluster.url_for(PIPELINE)
        process.send(StartJobs(url=url, directory=directory, window_s=WINDOW_S, watermark_s=WATERMARK_S))

    async def _add_server(self) -> None:
        """Adds a server. On a busy machine the coordinator may not answer in time: the soak tries again."""
        give_up = time.monotonic() + JOIN_S_MAX
        while True:
            try:
                await self._cluster.add_server()
                return
            except CoordinatorUnavailableError:
                if time.monotonic() >= give_up:
                    raise

    async def _inject_faults(self) -> None:
        """Injects the faults; returns when the load has lasted long enough."""
        cluster = self._cluster
        self._phase = "a server joins"
        await self._add_server()
        self._outcome.exercised["server joined"] += 1
        await self._work()
        if self._options.kill_driver:
            self._phase = "the driver is killed"
            os.killpg(self._driver.pid, signal.SIGKILL)  # with its Java, which would continue for a moment
            self._fault("driver killed")
            await self._start_driver()
            await self._work()
        self._phase = "jobs catch up"
        await self._until(lambda: self._status.behind < BEHIND_MAX, CATCH_UP_S_MAX)
        self._phase = "a server is killed"
        victim = self._random.choice(_members(cluster))
        at_us = int(time.time() * 1e6)
        await cluster.kill(victim)
        self._kills.append(ServerKill(victim, at_us, int(time.time() * 1e6)))
        self._fault("server killed")
        await self._work()
        self._phase = "load"
        end = self._began + self._options.seconds
        await self._until(lambda: time.monotonic() >= end, self._options.seconds)

    def _fault(self, corner: str) -> None:
        self._outcome.exercised[corner] += 1
        self._outcome.faults += 1
        self._count()

    def _count(self) -> None:
        """Adds what the jobs of a driver have done, before its figures are gone."""
        counts, status = self._outcome.exercised, self._status
        counts["batch"] += status.batches
        counts["archive batch"] += status.archive_batches
        before = self._outcome.status
        sums = {"late": before.late + status.late, "restarts": before.restarts + status.restarts}
        self._outcome.status = msgspec.structs.replace(status, **sums)
        self._status = JobStatus()

    async def _work(self) -> None:
        """Waits until the jobs have had some more batches."""
        counts = self._outcome.exercised
        batches = counts["batch"] + self._status.batches + BATCHES_BETWEEN
        archive_batches = counts["archive batch"] + self._status.archive_batches + 1

        def worked() -> bool:
            status = self._status
            return (
                counts["batch"] + status.batches >= batches
                and counts["archive batch"] + status.archive_batches >= archive_batches
            )

        if not await self._until(worked, STEP_S_MAX):
            self._outcome.problem(f"unsettled: {self._phase}: no new batches in {STEP_S_MAX:g} s")

    async def _end(self) -> None:
        self._phase = "publishers stop"
        self._publisher.send(Stop())
        if not await self._until(lambda: self._published.settled, STEP_S_MAX):
            self._outcome.problem("unsettled: publications were not confirmed")
        self._phase = "jobs end"
        self._driver.send(Stop())
        if not await self._until(lambda: self._done, STEP_S_MAX):
            raise LoadError(f"the jobs did not end in {STEP_S_MAX:g} s")
        self._count()

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Waits for a condition and shows progress; False after a timeout. A process that fails ends the round."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            if self._failed:
                raise LoadError(f"a job failed: {self._failed}")
            for process in (self._publisher, self._driver):
                if not self._done:
                    process.check()
            self._show()
            await asyncio.sleep(POLL_S)
        return True

    def _show(self) -> None:
        load_s = min(time.monotonic() - self._began, self._options.seconds)
        progress = RoundProgress(
            self._phase,
            load_s=load_s,
            messages=self._published.published,
            deliveries=self._status.rows,
            faults=self._outcome.faults,
        )
        self._tell(progress)


def _members(cluster: LocalCluster) -> list[str]:
    return [server.id for server in cluster.status().servers if server.in_ring]


async def run_pipeline(options: PipelineSoakOptions, tell: Tell) -> PipelineOutcome:
    """Runs the soak."""
    outcome = PipelineOutcome(options)
    began = time.monotonic()
    with round_directory(outcome) as directory:
        try:
            await PipelineRound(options, directory, outcome, tell).execute()
        except LoadError as error:
            outcome.rounds += 1
            outcome.problem(str(error))
    outcome.seconds = time.monotonic() - began
    return outcome
