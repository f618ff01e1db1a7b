"""What is said about moves beside the entries: requests to move a channel, and the agents' reports.

Owns the two forms and their bytes. Both lie in the coordinator (see `shoal.plan.keys`); a request is written by whoever
wants a channel elsewhere, a report by the agent of one server, and the mover reads both.
"""

from __future__ import annotations

from typing import Final

import msgspec

from shoal.errors import PlanError, ProtocolError
from shoal.plan.placement import Mode, check_servers


class ChannelReport(msgspec.Struct, frozen=True, array_like=True):
    """What an agent says of one channel that moves."""

    revision: int
    """The revision of the entry that the agent goes by."""
    handed: int
    """The newest revision for which it has handed over the streams that it knows; 0 for none."""
    behind: int
    """Subscribers on its server that do not stand where the entry says, as far as it knows."""
    here: int
    """Subscribers on its server."""
    streams: int
    """Live streams on its server that do not use the placement that publishers should use."""
    spoken: bool
    """Whether a message was heard since the entry came."""


class Report(msgspec.Struct, frozen=True, array_like=True):
    """What the agent of one server says; `life` names the agent's life that it was said in."""

    server: str
    incarnation: int
    channels: dict[bytes, ChannelReport]


class MoveRequest(msgspec.Struct, frozen=True):
    """Somebody wants a channel on these servers. `id` tells one request from the next. With `goes_there` nothing is
    wanted of a channel that is not on its way there: a move that is told lazily shall be told at once."""

    channel: bytes
    servers: tuple[str, ...]
    mode: Mode
    eager: bool
    id: str
    goes_there: bool = False


_encoder: Final = msgspec.msgpack.Encoder()
_report_decoder: Final = msgspec.msgpack.Decoder(Report)
_request_decoder: Final = msgspec.msgpack.Decoder(MoveRequest)


def encode_report(report: Report) -> bytes:
    """A report as it is stored."""
    return _encoder.encode(report)


def decode_report(data: bytes) -> Report:
    """The report in `data`; ProtocolError if it is none."""
    try:
        report = _report_decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"an agent's report cannot be read: {error}") from error
    if any(min(said.revision, said.handed, said.behind, said.here) < 0 for said in report.channels.values()):
        raise ProtocolError(f"the report of server {report.server!r} counts below zero")
    return report


def encode_request(request: MoveRequest) -> bytes:
    """A request as it is stored."""
    return _encoder.encode(request)


def decode_request(data: bytes) -> MoveRequest:
    """The request in `data`; PlanError if it is none, or asks for a placement that cannot be."""
    try:
        request = _request_decoder.decode(data)
        check_servers(request.mode, request.servers)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise PlanError(f"a request to move a channel cannot be read: {error}") from error
    return request
