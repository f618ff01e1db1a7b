"""Requests to move a unit, and the agents' reports about moving units.

Owns both for channels, and how they are stored for any kind: the format and the kind of unit first, then the body of
the kind. Both are in the coordinator (see `shoal.plan.keys`). The balancer and commands write requests, each agent
writes one report for its server, and the conductor reads both.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from shoal.errors import PlanError, ProtocolError
from shoal.plan.kinds import CHANNEL
from shoal.plan.placement import Mode, check_servers

T = TypeVar("T")

FORMAT: Final = 2


class ChannelReport(msgspec.Struct, frozen=True, array_like=True):
    """An agent's report about one moving channel."""

    revision: int
    """The revision of the entry that the agent uses."""
    handed: int
    """The newest revision for which it has handed over its known streams; 0 if none."""
    behind: int
    """Known subscribers on its server that are not yet subscribed on all servers of the entry."""
    here: int
    """Subscribers on its server."""
    streams: int
    """Live streams on its server that do not use the current placement for publishers."""
    spoken: bool
    """Whether a message was published since the entry arrived."""


class MoveReport(msgspec.Struct, frozen=True, array_like=True):
    """The report of one server's agent about moving channels."""

    server: str
    incarnation: int
    channels: dict[bytes, ChannelReport]

    @property
    def host(self) -> str:
        """The reporting host."""
        return self.server


class MoveRequest(msgspec.Struct, frozen=True):
    """A request to move a channel (the `unit`) to these servers. `id` identifies the request. With `goes_there`, it
    only speeds up a move that already goes there: clients are notified immediately. With `lasting`, the channel gets an
    entry also where the ring places it already, so that later changes of the ring do not move it."""

    unit: bytes
    servers: tuple[str, ...]
    mode: Mode
    eager: bool
    id: str
    goes_there: bool = False
    lasting: bool = False


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    format: int
    kind: str
    body: msgspec.Raw


_encoder: Final = msgspec.msgpack.Encoder()
_stored_decoder: Final = msgspec.msgpack.Decoder(_Stored)
_report_decoder: Final = msgspec.msgpack.Decoder(MoveReport)
_request_decoder: Final = msgspec.msgpack.Decoder(MoveRequest)


def encode_body(kind: str, body: Any) -> bytes:
    """The stored form of a request or a report about a kind of unit."""
    return _encoder.encode(_Stored(FORMAT, kind, msgspec.Raw(_encoder.encode(body))))


def decode_body(data: bytes, kind: str, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """The body of a stored request or report; ValueError if it is invalid."""
    try:
        stored = _stored_decoder.decode(data)
        if stored.format > FORMAT:
            raise ValueError(f"it is of format {stored.format}, this process knows {FORMAT}: upgrade this process")
        if stored.format < FORMAT:
            raise ValueError(f"it is of format {stored.format}, not {FORMAT}: upgrade the process that wrote it")
        if stored.kind != kind:
            raise ValueError(f"it is about a {stored.kind[:64]}, not about a {kind}")
        return decoder.decode(stored.body)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def encode_report(report: MoveReport) -> bytes:
    """The stored form of a report."""
    return encode_body(CHANNEL, report)


def decode_report(data: bytes) -> MoveReport:
    """The report in `data`; ProtocolError if it is invalid."""
    try:
        report = decode_body(data, CHANNEL, _report_decoder)
    except ValueError as error:
        raise ProtocolError(f"an agent's report cannot be read: {error}") from error
    if any(min(said.revision, said.handed, said.behind, said.here) < 0 for said in report.channels.values()):
        raise ProtocolError(f"the report of server {report.server!r} has a negative count")
    return report


def encode_request(request: MoveRequest) -> bytes:
    """The stored form of a request."""
    return encode_body(CHANNEL, request)


def decode_request(data: bytes) -> MoveRequest:
    """The request in `data`; PlanError if it is invalid or asks for an impossible placement."""
    try:
        request = decode_body(data, CHANNEL, _request_decoder)
        check_servers(request.mode, request.servers)
    except ValueError as error:
        raise PlanError(f"a request to move a channel cannot be read: {error}") from error
    return request
