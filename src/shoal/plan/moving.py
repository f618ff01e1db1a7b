"""What is said about moves beside the entries: requests to move a unit, and the agents' reports.

Owns the two forms for channels, and how a form of any kind is stored: the format and the kind of unit first, then the
kind's own body. Both lie in the coordinator (see `shoal.plan.keys`). Balancer and commands write requests, each agent
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
    """What an agent says of one channel that moves."""

    revision: int
    """The revision of the entry that the agent goes by."""
    handed: int
    """The newest revision for which it has handed over the streams that it knows; 0 for none."""
    behind: int
    """Known subscribers on its server that are not yet subscribed where the entry says."""
    here: int
    """Subscribers on its server."""
    streams: int
    """Live streams on its server that do not use the placement that publishers should use."""
    spoken: bool
    """Whether a message was heard since the entry came."""


class Report(msgspec.Struct, frozen=True, array_like=True):
    """What the agent of one server says of channels; `life` names the run of the agent's process."""

    server: str
    incarnation: int
    channels: dict[bytes, ChannelReport]

    @property
    def host(self) -> str:
        """The host whose report it is."""
        return self.server


class MoveRequest(msgspec.Struct, frozen=True):
    """A channel (the `unit`) shall live on these servers. `id` tells one request from the next. `goes_there`: only a
    channel that is already on its way there is concerned, and its clients shall be told at once."""

    unit: bytes
    servers: tuple[str, ...]
    mode: Mode
    eager: bool
    id: str
    goes_there: bool = False


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    format: int
    kind: str
    body: msgspec.Raw


_encoder: Final = msgspec.msgpack.Encoder()
_stored_decoder: Final = msgspec.msgpack.Decoder(_Stored)
_report_decoder: Final = msgspec.msgpack.Decoder(Report)
_request_decoder: Final = msgspec.msgpack.Decoder(MoveRequest)


def encode_body(kind: str, body: Any) -> bytes:
    """A request or a report about a kind of unit, as it is stored."""
    return _encoder.encode(_Stored(FORMAT, kind, msgspec.Raw(_encoder.encode(body))))


def decode_body(data: bytes, kind: str, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """The body of a stored request or report. ValueError says what is wrong with it."""
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


def encode_report(report: Report) -> bytes:
    """A report as it is stored."""
    return encode_body(CHANNEL, report)


def decode_report(data: bytes) -> Report:
    """The report in `data`; ProtocolError if it is none."""
    try:
        report = decode_body(data, CHANNEL, _report_decoder)
    except ValueError as error:
        raise ProtocolError(f"an agent's report cannot be read: {error}") from error
    if any(min(said.revision, said.handed, said.behind, said.here) < 0 for said in report.channels.values()):
        raise ProtocolError(f"the report of server {report.server!r} counts below zero")
    return report


def encode_request(request: MoveRequest) -> bytes:
    """A request as it is stored."""
    return encode_body(CHANNEL, request)


def decode_request(data: bytes) -> MoveRequest:
    """The request in `data`; PlanError if it is none, or asks for a placement that cannot exist."""
    try:
        request = decode_body(data, CHANNEL, _request_decoder)
        check_servers(request.mode, request.servers)
    except ValueError as error:
        raise PlanError(f"a request to move a channel cannot be read: {error}") from error
    return request
