"""Authentication at an agent: which control messages of clients it takes, and what authenticates its own.

Owns the scheme of the cluster, the keys of the clients that were heard lately, and the highest number of each. Keys
follow from the agents' secret (`shoal.wire.identity`), so a restarted agent has them again.

    message on the agents' channel -> size -> scheme and generation -> tag -> number -> decoded

With scheme 0 nothing is authenticated. With scheme 1 a message of scheme 0 is refused, so that no client can be talked
into going without.
"""

from __future__ import annotations

import enum
from typing import Final

from shoal.plan.ring import Ring
from shoal.rules import Rules, rule
from shoal.wire import control, identity
from shoal.wire.identity import AgentSecret, ClientKey

CLIENT_TAGS: Final = rule("client_tags", "An agent takes messages only with the tag of the client that they name.")

CLIENTS_HEARD_MAX: Final = 65_536
"""Clients whose keys and numbers an agent remembers. Beyond it the one that was silent for longest is forgotten: its
keys are derived again, and its last message could be repeated by others until it sends the next one."""


class MessageVerdict(enum.Enum):
    """What becomes of a message."""

    TAKEN = "taken"
    FORGED = "forged"
    OLD = "old"
    OTHER_SCHEME = "other scheme"
    OTHER_GENERATION = "other generation"


class _Client:
    """A client that was heard: its keys for this server, and the highest number of its messages."""

    __slots__ = ("from_agent", "key", "number", "to_agent")

    def __init__(self, key: ClientKey, server: str) -> None:
        self.key = key
        self.to_agent = key.to_agent(server)
        self.from_agent = control.KeySeal(control.CLIENT_SCHEME, key.generation, key.from_agent(server))
        self.number = 0


class AgentAuthentication:
    """The keys of one agent. `secrets` are those of the cluster by generation, the newest last."""

    def __init__(self, server: str, client: int, rules: Rules) -> None:
        self._server = server
        self._client = client
        self.secrets: dict[int, AgentSecret] = {}
        self._rules = rules
        self._ring: Ring | None = None
        self.active = False
        """Whether messages of this cluster are authenticated."""
        self._clients: dict[int, _Client] = {}

    def follow(self, ring: Ring) -> None:
        """A new ring names the scheme and the generations."""
        self._ring = ring
        self.active = ring.scheme != control.NO_SCHEME

    @property
    def _named(self) -> list[int]:
        """The generations that the ring names."""
        return [key.generation for key in self._ring.agent_keys] if self._ring is not None else []

    @property
    def secret(self) -> AgentSecret | None:
        """The secret of the oldest generation that the ring names and this agent has: clients and agents that do not
        know this ring yet know that one too."""
        known = [generation for generation in self._named if generation in self.secrets]
        return self.secrets[min(known)] if known else None

    def accepted(self, generation: int) -> AgentSecret | None:
        """The secret of a generation if its clients are served: the ring names it, or a newer ring does."""
        named = self._named
        in_force = not named or generation in named or generation > max(named)
        return self.secrets.get(generation) if in_force else None

    @property
    def ready(self) -> bool:
        """Whether this agent can speak so that clients believe it."""
        return not self.active or self.secret is not None

    # From clients

    def judge(self, head: control.Head, data: bytes) -> MessageVerdict:
        """Decides about a message on the agents' channel, not an Enrol, whose head is of this version."""
        if not self.active:
            return MessageVerdict.TAKEN if head.scheme == control.NO_SCHEME else MessageVerdict.OTHER_SCHEME
        if CLIENT_TAGS in self._rules:
            if head.scheme != control.CLIENT_SCHEME:
                return MessageVerdict.OTHER_SCHEME
            secret = self.accepted(head.generation)
            if secret is None:
                return MessageVerdict.OTHER_GENERATION
            known = client = self._clients.get(head.client)
            if client is None or client.key.generation != head.generation:
                client = _Client(secret.client(head.client), self._server)
                client.number = known.number if known is not None else 0
            if not control.is_tagged(data, client.to_agent):
                return MessageVerdict.FORGED
        else:
            secret = self.secret
            assert secret is not None
            client = self._clients.get(head.client) or _Client(secret.client(head.client), self._server)
        if head.number <= client.number:
            return MessageVerdict.OLD
        client.number = max(client.number, head.number)
        self._remember(head.client, client)
        return MessageVerdict.TAKEN

    def _remember(self, number: int, client: _Client) -> None:
        """Keeps a client as the one that was heard last."""
        known = self._clients.pop(number, None)
        if known is not None:
            client.number = max(client.number, known.number)
        self._clients[number] = client
        if len(self._clients) > CLIENTS_HEARD_MAX:
            del self._clients[next(iter(self._clients))]

    def knows(self, client: int) -> bool:
        """Whether a client with this id was heard lately."""
        return client in self._clients

    # What the agent sends

    def _key(self, client: int) -> ClientKey | None:
        """The key of a client, in the generation that it uses."""
        heard = self._clients.get(client)
        if heard is not None:
            return heard.key
        secret = self.secret
        return secret.client(client) if secret is not None else None

    def to_client(self, client: int) -> control.Seal | None:
        """Authenticates a message to one client; None with scheme 0."""
        if not self.active:
            return None
        heard = self._clients.get(client)
        if heard is not None:
            return heard.from_agent
        key = self._key(client)
        return _Client(key, self._server).from_agent if key is not None else None

    def to_all(self) -> control.Seal | None:
        """Authenticates a message to all clients; None with scheme 0."""
        secret = self.secret if self.active else None
        return control.SignatureSeal(secret) if secret is not None else None

    def introduced(self, client: int, introduce: control.Introduce) -> control.Introduced | None:
        """The keys that a client shares with a publisher, sealed for that client."""
        own = self._key(client)
        if own is None or not self.active:
            return None
        keys = [
            (
                generation,
                own.sealed(secret.client(introduce.peer).peer(client), introduce.nonce, introduce.peer, generation),
            )
            for generation, secret in self.secrets.items()
            if self.accepted(generation) is not None
        ]
        return control.Introduced(introduce.peer, keys)

    # Publishers, whom the agent asks for messages as a client does

    def to_publisher(self, publisher: int) -> control.Seal | None:
        """Authenticates a request to a publisher; None with scheme 0."""
        key = self._key(publisher) if self.active else None
        return control.asking(key.peer(self._client), key.generation) if key is not None else None

    def is_from_publisher(self, head: control.Head, data: bytes) -> bool:
        """Whether a publisher has sent an answer."""
        if not self.active:
            return head.scheme == control.NO_SCHEME
        secret = self.secrets.get(head.generation)
        if head.scheme != control.PEER_SCHEME or secret is None:
            return False
        return control.is_tagged(data, identity.reply_key(secret.client(head.client).peer(self._client)))

    # Other agents

    def is_from_agent(self, head: control.Head, data: bytes) -> bool:
        """Whether another agent has sent a heartbeat."""
        if not self.active:
            return head.scheme == control.NO_SCHEME
        secret = self.secrets.get(head.generation)
        return head.scheme == control.SIGNED_SCHEME and secret is not None and control.is_signed(data, secret.signing)

    def own_key(self) -> ClientKey | None:
        """The key of this agent as a client of other servers; None with scheme 0."""
        return self._key(self._client) if self.active else None
