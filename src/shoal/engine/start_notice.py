"""Tells clients that an engine is starting, while it compiles its kernels: the first one on a machine takes a minute.

Owns the notice: a Roll of instance 0, which no engine has.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final

from shoal.engine.member_shell import forget
from shoal.engine.messages import MAIN, Roll, call_channel, encode
from shoal.engine.outbox import Wire

NOTICE_EVERY_S: Final = 3.0
"""Kernels that are cached load faster than this: then nothing is told."""


async def while_announced(wire: Wire, work: Coroutine[Any, Any, None]) -> None:
    """Waits for `work`, and tells clients meanwhile that the engine is starting."""
    telling = asyncio.create_task(_tell(wire))
    try:
        await work
    finally:
        telling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await telling


async def _tell(wire: Wire) -> None:
    while True:
        await asyncio.sleep(NOTICE_EVERY_S)
        posted = wire.post(call_channel(MAIN), encode(Roll(0, open=True)))
        if posted is not None:
            posted.add_done_callback(forget)
