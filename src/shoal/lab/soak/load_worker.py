"""A load process of a soak: `python -m shoal.lab.soak.load_worker`, run by `shoal.lab.harness`.

Owns its log and its status reports. Its clients are in `publishers`, `subscribers` and `plain_clients`.
"""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Final

from shoal.lab.harness import Parent, Stop, run_worker
from shoal.lab.soak.load_context import LoadContext, LoadTasks, OrderState
from shoal.lab.soak.load_orders import ORDERS, LoadOrder, LoadStatus, RaiseLoad, Role, StartLoad
from shoal.lab.soak.publishers import Publishers
from shoal.lab.soak.round_log import RoundLog
from shoal.lab.soak.subscribers import Subscribers

STATUS_S: Final = 0.25


async def work(parent: Parent[LoadOrder]) -> None:
    """Runs the clients of the process until there are no more orders."""
    start = await parent.order()
    if not isinstance(start, StartLoad):
        return
    log = RoundLog(Path(start.directory) / f"{start.role}-{start.number}.log")
    load = _load_of(start.role, LoadContext(start, log))
    gc.freeze()  # as an application does that cares about its slowest messages
    orders = OrderState()
    others = [asyncio.create_task(_follow(parent, orders)), asyncio.create_task(_report(parent, load, log))]
    try:
        await load.run(orders)
    finally:
        for task in others:
            task.cancel()
    log.end()


def _load_of(role: Role, context: LoadContext) -> LoadTasks:
    match role:
        case "publish":
            return Publishers(context)
        case "subscribe":
            return Subscribers(context)
        case "watch":
            from shoal.lab.soak.plain_clients import PlainClients  # only here, because redis-py loads slowly

            return PlainClients(context)


async def _follow(parent: Parent[LoadOrder], orders: OrderState) -> None:
    while (order := await parent.order()) is not None:
        match order:
            case RaiseLoad():
                orders.is_raised = True
            case Stop():
                orders.stop.set()
    orders.stop.set()
    orders.end.set()


async def _report(parent: Parent[LoadOrder], load: LoadTasks, log: RoundLog) -> None:
    while True:
        parent.tell(LoadStatus(log.messages, log.deliveries, load.ready, load.settled))
        await asyncio.sleep(STATUS_S)


if __name__ == "__main__":
    run_worker(ORDERS, work, log_level="warning")
