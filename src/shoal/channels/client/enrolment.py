"""Enrolment: how a new client gets its id and its key from an agent, in one exchange.

Owns the client's side of the exchange, without I/O; `shoal.bus.enrolment` is its shell. The client sends a fresh public
key and listens on the inbox that follows from it. The agent draws an id and seals the client's key with what both sides
compute from the exchange (`shoal.wire.identity`), so what others overhear does not help them. A client whose key is of
an older generation of the agents' secret renews it in the same way, and keeps its id.
"""

from __future__ import annotations

from typing import Any

from hiredis import PushNotification

from shoal.errors import ProtocolError
from shoal.plan.ring import Ring
from shoal.wire import control
from shoal.wire.commands import Command
from shoal.wire.envelope import AGENT_CHANNEL, CLIENT_ID_BITS, inbox_channel
from shoal.wire.identity import KEY_BYTES, ClientKey, enrolment, enrolment_inbox, enrolment_seal


class Enrolment:
    """One attempt at one server. `private` is 32 random bytes, `nonce` a random number; both are used once. `old` is
    the key to renew; None for a new client."""

    def __init__(self, ring: Ring, server: str, private: bytes, nonce: int, old: ClientKey | None = None) -> None:
        agents = max(ring.agent_keys, key=lambda key: key.generation)
        self._old = old
        self._generation = agents.generation
        self._signing = {key.generation: key.signing for key in ring.agent_keys}
        self._public, self._key = enrolment(private, agents.exchange, server)
        self._nonce = nonce
        self._number = enrolment_inbox(self._public)
        self._inbox = inbox_channel(self._number)

    def commands(self) -> list[Command]:
        """What to send when the connection is open."""
        seal = control.KeySeal(control.ENROL_SCHEME, self._generation, self._key)
        ask: control.Enrol | control.Renew = control.Enrol(self._public)
        if (old := self._old) is not None:
            ask = control.Renew(self._public, old.client, old.generation, old.renewal(self._public))
        blob = control.encode(ask, self._number, self._nonce, seal)
        return [(b"SUBSCRIBE", self._inbox), (b"PUBLISH", AGENT_CHANNEL, blob)]

    def received(self, frames: list[Any]) -> ClientKey | control.Refused | None:
        """Frames from the server; returns the client's key, or a refusal, when the agent has answered."""
        for frame in frames:
            if isinstance(frame, PushNotification) and frame[0] == b"message" and frame[1] == self._inbox:
                answer = self._open(frame[2])
                if answer is not None:
                    return answer
        return None

    def _open(self, data: bytes) -> ClientKey | control.Refused | None:
        head = control.read_head(data) if len(data) <= control.FROM_AGENT_BYTES_MAX else None
        if head is None or (head.client, head.number) != (self._number, self._nonce):
            return None
        if head.scheme == control.ENROL_SCHEME:
            authentic = control.is_tagged(data, self._key)
        else:
            signing = self._signing.get(head.generation) if head.scheme == control.SIGNED_SCHEME else None
            authentic = signing is not None and control.is_signed(data, signing)
        if not authentic:
            return None
        try:
            answer = control.decode(data).message
        except ProtocolError:
            return None
        return answer if isinstance(answer, control.Refused) else self._key_in(answer)

    def _key_in(self, enrolled: control.Control) -> ClientKey | None:
        if not isinstance(enrolled, control.Enrolled):
            return None
        if len(enrolled.sealed) != KEY_BYTES or not 0 < enrolled.id < 1 << CLIENT_ID_BITS:
            return None
        if self._old is not None and enrolled.id != self._old.client:
            return None
        return ClientKey(enrolled.id, self._generation, enrolment_seal(self._key, enrolled.id, enrolled.sealed))
