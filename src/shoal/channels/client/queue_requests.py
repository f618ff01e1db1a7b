"""A client's requests for queues that do not exist: the client's side of RequestQueue, without I/O.

Owns the choice of the agent and the repetitions. Any agent can pass a request on, so a client asks one to whose server
it has a usable link; without one it opens a link. A request without an answer, or with the answer "busy", goes to the
next agent, with more patience each time, until the shell withdraws it.
"""

from __future__ import annotations

from typing import Final

from shoal.channels import states
from shoal.channels.client.context import Context, QueueAnswered
from shoal.channels.client.server_link import ServerLink
from shoal.channels.timers import patience
from shoal.wire import control

REQUESTS_MAX: Final = 1024
"""Requests that are open at a time. Beyond it the oldest is answered with "busy"."""


class _Request:
    """One wanted queue; `token` identifies it for the shell."""

    __slots__ = ("attempts", "name", "nonce", "settings", "token")

    def __init__(self, name: bytes, settings: bytes, token: object) -> None:
        self.name = name
        self.settings = settings
        self.token = token
        self.attempts = 0
        self.nonce = 0
        """The nonce of the question that is open; 0 while there is no usable link."""


class QueueRequester:
    """The open requests of one router."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._requests: dict[object, _Request] = {}

    def ask(self, name: bytes, settings: bytes, token: object, now: float) -> None:
        """Asks for a queue; the effect `QueueAnswered` has the answer."""
        if len(self._requests) >= REQUESTS_MAX:
            oldest = next(iter(self._requests.values()))
            self._end(oldest, control.QUEUE_BUSY, "this client asks for many queues at once")
        request = self._requests[token] = _Request(name, settings, token)
        self.due(request, now)

    def withdraw(self, token: object) -> None:
        """Forgets a request. Does nothing if it was answered."""
        request = self._requests.pop(token, None)
        if request is not None:
            self._context.timers.cancel(("queue", request))

    def due(self, request: _Request, now: float) -> None:
        """Asks the next agent, or opens a link to it."""
        context = self._context
        if context.closing or self._requests.get(request.token) is not request:
            return
        members = [link for server, link in sorted(context.links.items()) if context.is_member(link)]
        usable = [link for link in members if link.state is states.LinkState.USABLE and not link.is_busy(now)]
        request.nonce = 0
        if usable:
            self._send(request, usable[(context.client + request.attempts) % len(usable)])
        elif members:
            context.want(members[(context.client + request.attempts) % len(members)], now)
        context.timers.set(("queue", request), now + patience(context.limits.hello_retry_s, request.attempts))
        request.attempts += 1

    def link_usable(self, link: ServerLink, now: float) -> None:
        """A server can be used: requests that waited for one are sent."""
        for request in self._requests.values():
            if not request.nonce and self._context.is_member(link):
                self._send(request, link)

    def answered(self, nonce: int, answer: control.QueueRequested) -> None:
        """Takes an agent's answer. After "busy" the next agent is asked when the timer is due."""
        for request in self._requests.values():
            if request.nonce == nonce and request.name == answer.name:
                if answer.code != control.QUEUE_BUSY:
                    self._end(request, answer.code, answer.text)
                return

    def _send(self, request: _Request, link: ServerLink) -> None:
        context = self._context
        request.nonce = context.next_number()
        context.tell_agent(link, control.RequestQueue(request.nonce, request.name, request.settings))

    def _end(self, request: _Request, code: str, text: str) -> None:
        self.withdraw(request.token)
        self._context.effects.append(QueueAnswered(request.token, code, text))
