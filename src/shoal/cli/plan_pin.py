"""`shoal plan pin` and `shoal plan release`: channels that the balancer leaves alone.

Owns the two commands, and reading pins for other commands. A pin is a record in the coordinator beside those of the
balancer; `shoal plan move` pins too.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shoal.cli.output import Subparsers, add_command, result
from shoal.errors import CoordinatorError, PlanError

if TYPE_CHECKING:
    from shoal.balance.balancer_keys import Pin
    from shoal.coordination.interface import Coordinator
    from shoal.plan.placement import Placement

_TIMEOUT_S: Final = 5.0
_NAMES_SHOWN: Final = 5


class PinView(msgspec.Struct, frozen=True):
    """A pinned channel: where it was pinned, and since when. `failed_over` means that a server there has died, so that
    the channel is elsewhere now."""

    channel: str
    mode: str
    servers: tuple[str, ...]
    since_s: float
    failed_over: bool

    @property
    def text(self) -> str:
        """What to print after the channel's placement."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.since_s))
        where = ", ".join(self.servers)
        moved = f"; failed over from {where}: move it back with shoal plan move" if self.failed_over else ""
        return f"pinned since {since} UTC{moved}"


def register_pin(group: Subparsers) -> None:
    """Add the commands to `shoal plan`."""
    from shoal.cli.plan_move import add_wait_flags

    pin = add_command(
        group,
        "pin",
        run_pin,
        "keep one channel where it is",
        example="shoal plan pin tile.3.4",
        description="Pin one channel to its servers: the balancer does not move it, and does not drain its servers, "
        "until shoal plan release. If one of its servers dies, the channel is placed on others and stays there.",
    )
    pin.add_argument("channel", metavar="CHANNEL")
    add_wait_flags(pin)
    release = add_command(
        group,
        "release",
        run_release,
        "let the balancer move a pinned channel again",
        example="shoal plan release tile.3.4",
        description="End the pin of a channel that was pinned by shoal plan pin or shoal plan move.",
    )
    release.add_argument("channel", metavar="CHANNEL")


def run_pin(args: argparse.Namespace) -> int:
    """Pin a channel."""
    from shoal.cli.plan_move import run_request

    return run_request(args, None)


def run_release(args: argparse.Namespace) -> int:
    """Release a channel; an error if it is not pinned."""
    from shoal.cli.plan import coordinator_of
    from shoal.wire.envelope import check_channel_name

    channel = check_channel_name(args.channel, args.settings.limits)
    url, _ = coordinator_of(args)
    asyncio.run(_release(url, channel))
    name = printable(channel)
    result(args, {"channel": name, "pinned": False}, f"{name}: released; the balancer may move it again")
    return 0


async def _release(url: str, channel: bytes) -> None:
    from shoal.balance.balancer_keys import pin_key
    from shoal.runtime import PRODUCTION

    async with await PRODUCTION.coordinator(url, _TIMEOUT_S) as coordinator:
        if await coordinator.get(pin_key(channel)) is None:
            raise PlanError(f"{printable(channel)} is not pinned", do="see shoal plan show")
        await coordinator.delete(pin_key(channel))


async def read_pins(coordinator: Coordinator) -> dict[bytes, Pin] | None:
    """The pinned channels; None if the login cannot read them. Unreadable pins are left out, as the balancer does."""
    from shoal.balance.balancer_keys import PINS_PREFIX, Pin, decode, pin_channel

    try:
        stored = await coordinator.list(PINS_PREFIX)
    except CoordinatorError:
        return None
    pins: dict[bytes, Pin] = {}
    for key, kept in sorted(stored.items()):
        channel = pin_channel(key)
        try:
            if channel is not None:
                pins[channel] = decode(kept.value, Pin)
        except PlanError:
            continue
    return pins


def view_pin(channel: bytes, pin: Pin, placement: Placement) -> PinView:
    """The view of a pin; `placement` is where the channel is."""
    where = pin.place
    moved = not {*where.servers} >= {*placement.servers} or where.mode is not placement.mode
    return PinView(printable(channel), where.mode.value, where.servers, pin.at_s, moved)


def names_text(names: Any) -> str:
    """A short list of channel names."""
    shown = [printable(name) if isinstance(name, bytes) else name for name in names]
    more = f" and {len(shown) - _NAMES_SHOWN} more" if len(shown) > _NAMES_SHOWN else ""
    return ", ".join(shown[:_NAMES_SHOWN]) + more


def printable(channel: bytes) -> str:
    """Escape a channel name for the terminal."""
    text = channel.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else text.encode("unicode_escape").decode()
