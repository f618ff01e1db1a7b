"""The process of hostile clients: `python -m shoal.lab.soak.hostile_worker`, run by `shoal.lab.harness`.

Owns the raw connections, two to each server (one listens, one attacks), and the pace. What is sent is in `attacks`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from random import Random
from time import monotonic, sleep
from typing import Any, Final

import hiredis

from shoal.channels.client.enrolment import Enrolment
from shoal.errors import EnrolmentError
from shoal.lab.harness import Parent, run_worker
from shoal.lab.soak.attacks import ATTACKS, Attack, Scene
from shoal.lab.soak.hostile_orders import ORDERS, HostileOrder, PhaseOver, RunPhase, StartHostile
from shoal.plan.plan_copy import PLAN_COPY_KEY, decode_copy
from shoal.plan.ring import ServerAddress
from shoal.plan.signature import Verifier
from shoal.wire.commands import Command, encode_commands
from shoal.wire.identity import KEY_BYTES, ClientKey

READ_BYTES: Final = 1 << 18
OVERHEARD: Final = (b"__shoal:*", b"soak.*")
"""What an attacker listens to: control messages, and the channels of the load."""
HARMLESS_BYTES_MAX: Final = 1 << 20
"""Harmless messages are not larger; several stand for a large one."""
QUIET_S: Final = 0.01
"""Pause after a batch without commands."""
BEHIND_S_MAX: Final = 0.2
"""An attack that is further behind its pace does not catch up."""
QUESTION_S_MAX: Final = 8.0
"""How much longer an attack by false answers runs if no client has asked anything yet."""
CONNECT_S_MAX: Final = 5.0
SEND_S_MAX: Final = 5.0


def login(start: StartHostile) -> Command:
    """The first command on a connection."""
    return b"HELLO", b"3", b"AUTH", start.username.encode(), start.password.encode()


class RawClient:
    """One connection to one server, without any of our own client code. A thread reads what comes."""

    def __init__(self, address: ServerAddress, start: StartHostile, scene: Scene | None = None) -> None:
        self.refused = 0
        self._scene = scene
        self._reads = threading.Event()
        self._reads.set()
        self._socket = socket.create_connection((address.host, address.port), CONNECT_S_MAX)
        self._socket.settimeout(SEND_S_MAX)
        self.send([login(start), (b"PSUBSCRIBE", *OVERHEARD)] if scene is not None else [login(start)])
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, commands: list[Command]) -> int:
        """Sends commands; returns the number of bytes. OSError if the server does not take them."""
        data = encode_commands(commands)
        self._socket.sendall(data)
        if any(command[0] == b"PSUBSCRIBE" for command in commands) and self._scene is None:
            self._reads.clear()
        return len(data)

    def _read(self) -> None:
        reader = hiredis.Reader(notEnoughData=self)
        with contextlib.suppress(OSError, hiredis.ProtocolError):
            while True:
                self._reads.wait()
                try:
                    data = self._socket.recv(READ_BYTES)
                except TimeoutError:
                    continue
                if not data:
                    return
                if self._scene is None and b"-" not in data:
                    continue
                reader.feed(data)
                while (frame := reader.gets()) is not self:
                    if isinstance(frame, hiredis.PushNotification) and frame[0] == b"pmessage" and self._scene:
                        self._scene.hear(frame[2], frame[3])
                    elif isinstance(frame, hiredis.ReplyError):
                        self.refused += 1

    def close(self) -> None:
        """Ends the connection."""
        self._reads.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def enrol(address: ServerAddress, start: StartHostile) -> ClientKey:
    """The id and the key that the server's agent gives to any client with the password."""
    random = Random(f"{start.seed} {address.id}")
    reader = hiredis.Reader(notEnoughData=None)
    with socket.create_connection((address.host, address.port), CONNECT_S_MAX) as connection:

        def ask(commands: list[Command]) -> None:
            connection.sendall(encode_commands(commands))

        def take() -> Any:
            while (frame := reader.gets()) is None:
                reader.feed(connection.recv(READ_BYTES))
            return frame

        ask([login(start), (b"GET", PLAN_COPY_KEY)])
        take()
        copy = decode_copy(take())
        attempt = Enrolment(Verifier(copy.key).ring(copy.ring), address.id, random.randbytes(KEY_BYTES), 1)
        ask(attempt.commands())
        while True:
            answer = attempt.received([take()])
            if isinstance(answer, ClientKey):
                return answer
            if answer is not None:
                raise EnrolmentError(answer.text)


class Attacker:
    """The attacks on one server."""

    def __init__(self, address: ServerAddress, start: StartHostile) -> None:
        self._address = address
        self._start = start
        self._scene = Scene(address.id, enrol(address, start), start.seed)
        self.ear = RawClient(address, start, self._scene)

    def run(self, order: RunPhase) -> PhaseOver:
        """One phase. A connection that the server cuts is replaced."""
        attack, until = ATTACKS[order.attack], monotonic() + order.seconds
        latest = until + QUESTION_S_MAX if attack.answers else until
        commands = size = refused = cut_off = 0
        while monotonic() < (end := until if commands or cut_off else latest):
            client = RawClient(self._address, self._start)
            try:
                for sent, sent_bytes in self._attack(client, attack, order.harmless, end):
                    commands += sent
                    size += sent_bytes
                    if monotonic() >= until:
                        break
            except OSError:
                cut_off += 1
                sleep(1 / attack.commands_per_s)
            finally:
                refused += client.refused
                client.close()
        return PhaseOver(order.attack, order.harmless, commands, size, refused, cut_off)

    def _attack(self, client: RawClient, attack: Attack, harmless: bool, until: float) -> Iterator[tuple[int, int]]:
        """Sends the batches of an attack; yields the number of commands and bytes of each."""
        due = monotonic()
        for batch in attack.batches(self._scene):
            now = monotonic()
            if now >= until:
                return
            if not batch:
                sleep(QUIET_S)
                continue
            if now < due:
                sleep(min(due, until) - now)
            sent_bytes = client.send(_harmless(batch) if harmless else batch)
            yield len(batch), sent_bytes
            pause_s = max(len(batch) / attack.commands_per_s, sent_bytes / attack.bytes_per_s)
            due = max(due, monotonic() - BEHIND_S_MAX) + pause_s


def _harmless(batch: list[Command]) -> list[Command]:
    """Messages of the same sizes, on channels without subscribers."""
    commands: list[Command] = []
    for command in batch:
        left = sum(map(len, command))
        while left > 0:
            commands.append((b"PUBLISH", b"harmless.%d" % (len(commands) % 10), b"x" * min(left, HARMLESS_BYTES_MAX)))
            left -= HARMLESS_BYTES_MAX
    return commands


async def work(parent: Parent[HostileOrder]) -> None:
    """Runs phases until there are no more orders."""
    start = await parent.order()
    if not isinstance(start, StartHostile):
        return
    attackers = [Attacker(address, start) for address in start.servers]
    turn = 0
    while isinstance(order := await parent.order(), RunPhase):
        attacker = attackers[turn // 2 % len(attackers)]  # both phases of an attack are on the same server
        turn += 1
        parent.tell(await asyncio.to_thread(attacker.run, order))


if __name__ == "__main__":
    run_worker(ORDERS, work, log_level="warning")
