"""Authentication at a client: which control messages it takes.

Owns the checks of tags and signatures, in the order size, head, tag; decoding comes after them. Every client can read
and write every internal channel of a server (on Redis 6.2), so that a message is on the right channel proves nothing.

    inbox              tag with the key that this client shares with the agents, for this server
    heartbeat channel  signature of the agents, whose public keys are in the ring
    peer channel       tag with the key that subscriber and publisher share
"""

from __future__ import annotations

from typing import Final

from shoal.channels.client.context import Context
from shoal.channels.client.server_link import ServerLink
from shoal.rules import rule
from shoal.wire import control, identity

AGENT_TAGS: Final = rule("agent_tags", "A client takes messages in its inbox only with the tag of the server's agent.")
SIGNATURES: Final = rule("signatures", "A client takes messages to all clients only with the agents' signature.")
PEER_TAGS: Final = rule("peer_tags", "Heal, Resend and Healed are taken only with the tag of the client they name.")


UNREAD_REVIEW_S: Final = 5.0
"""How long after an unread message an agent is asked about false messages. A flood of junk leads to a question as often
as that."""


class ClientAuthentication:
    """The checks of one client. Without a key (scheme 0) it takes what is not authenticated, and nothing else."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def is_from_agent(self, link: ServerLink, head: control.Head, data: bytes, now: float) -> bool:
        """Whether the server's agent has sent a message to this client."""
        if head.client != self._context.client:
            return False
        if link.from_agent is None:
            return head.scheme == control.NO_SCHEME
        if head.scheme == control.SIGNED_SCHEME:
            return control.is_kind(head, control.Refused) and self._is_signed(link, head, data, now)
        if AGENT_TAGS not in self._context.rules:
            return True
        key = link.from_agent.get(head.generation)
        return head.scheme == control.CLIENT_SCHEME and key is not None and control.is_tagged(data, key)

    def is_from_agents(self, link: ServerLink, head: control.Head, data: bytes, now: float) -> bool:
        """Whether an agent has sent a message to all clients. Which agent, its body says."""
        if link.from_agent is None:
            return head.scheme == control.NO_SCHEME
        if SIGNATURES not in self._context.rules:
            return True
        return head.scheme == control.SIGNED_SCHEME and self._is_signed(link, head, data, now)

    def _is_signed(self, link: ServerLink, head: control.Head, data: bytes, now: float) -> bool:
        ring = self._context.book.ring
        for key in ring.agent_keys if ring is not None else ():
            if key.generation == head.generation:
                known = control.known_signature(data, key.signing)
                if known is None and not link.may_verify(now):
                    self._ask_later(link, now)
                    return False
                return control.is_signed(data, key.signing) if known is None else known
        return False

    def _ask_later(self, link: ServerLink, now: float) -> None:
        """A message is dropped unread, in which an agent may have named false messages: it is asked about them."""
        for site in link.sites:
            self._context.timers.set_if_absent(("review", site), now + UNREAD_REVIEW_S)

    def is_from_peer(self, head: control.Head, data: bytes) -> bool:
        """Whether the client that a message on the peer channel names has sent it: a subscriber that asks this client,
        or a publisher that this client has asked."""
        if self._context.key is None:
            return head.scheme == control.NO_SCHEME
        if PEER_TAGS not in self._context.rules:
            return True
        if head.scheme != control.PEER_SCHEME:
            return False
        if control.is_kind(head, control.Heal):
            own = self._context.keys.get(head.generation)
            return own is not None and control.is_tagged(data, identity.ask_key(own.peer(head.client)))
        key = self._context.peers.key(head.client, head.generation)
        return key is not None and control.is_tagged(data, identity.reply_key(key))
