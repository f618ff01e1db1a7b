"""The kinds of units and hosts that ship: measured, planned and moved.

Owns the list. A package declares its kinds beside what they measure, plan and move; a new kind is added here and
nowhere else. `KINDS` is for readers of telemetry and load windows, `REGISTRY` for the leader.
"""

from __future__ import annotations

from typing import Final

from shoal.balance.engine_planner import EnginePlanner
from shoal.balance.queue_planner import QueuePlanner
from shoal.balance.registry import ManagedKind, Registry
from shoal.channels.telemetry.channel_kind import CHANNEL, SERVER
from shoal.coordination.acl import STORES
from shoal.load.kinds import Kinds
from shoal.plan.queue_steps import QueueSteps
from shoal.plan.steps import ChannelSteps
from shoal.queues.queue_kind import QUEUE, STORE

KINDS: Final = Kinds(units=(CHANNEL, QUEUE), hosts=(SERVER, STORE))
REGISTRY: Final = Registry(
    load=KINDS,
    units=(
        ManagedKind(ChannelSteps),
        ManagedKind(QueueSteps, QueuePlanner(KINDS), STORES),
        ManagedKind(None, EnginePlanner()),
    ),
)
