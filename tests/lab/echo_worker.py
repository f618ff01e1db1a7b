"""A load process for the tests of the harness: `python -m tests.lab.echo_worker`."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TypeAlias

import msgspec

from shoal.lab.harness import Parent, Ready, run_worker


class Say(msgspec.Struct, tag=True, frozen=True):
    """Answer with this text."""

    text: str


class Count(msgspec.Struct, tag=True, frozen=True):
    """Report every number up to this one, then that it is done."""

    numbers: int


class Fail(msgspec.Struct, tag=True, frozen=True):
    """Raise an error."""

    text: str


class Leave(msgspec.Struct, tag=True, frozen=True):
    """End, though there may be more orders."""


class Print(msgspec.Struct, tag=True, frozen=True):
    """Print to standard output, as a library may."""

    text: str


class Hang(msgspec.Struct, tag=True, frozen=True):
    """Block the event loop."""

    seconds: float


class Said(msgspec.Struct, tag=True, frozen=True):
    text: str
    pid: int


class Number(msgspec.Struct, tag=True, frozen=True):
    number: int


EchoOrder: TypeAlias = Say | Count | Fail | Leave | Print | Hang
EchoReport: TypeAlias = Ready | Said | Number

ORDERS: msgspec.json.Decoder[EchoOrder] = msgspec.json.Decoder(EchoOrder)
REPORTS: msgspec.json.Decoder[EchoReport] = msgspec.json.Decoder(EchoReport)


async def work(parent: Parent[EchoOrder]) -> None:
    while (order := await parent.order()) is not None:
        match order:
            case Say(text):
                parent.tell(Said(text, os.getpid()))
            case Count(numbers):
                for number in range(numbers):
                    parent.tell(Number(number))
                    await asyncio.sleep(0)
                parent.tell(Ready())
            case Fail(text):
                raise ValueError(text)
            case Leave():
                return
            case Print(text):
                print(text, flush=True)
            case Hang(seconds):
                parent.tell(Ready())
                time.sleep(seconds)  # noqa: ASYNC251 - a child that is stuck


if __name__ == "__main__":
    run_worker(ORDERS, work)
