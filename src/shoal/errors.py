"""Every exception that Shoal raises on purpose, in one tree.

    ShoalError
    ├── ConfigError                     a setting that cannot be, and where it came from
    ├── ConnectError                    no usable connection
    │   ├── AuthenticationError             the password or the user was refused
    │   ├── ServerTooOldError               the server lacks what Shoal needs
    │   └── ClusterNotFoundError            nothing runs where we looked
    ├── PublishError                    a message that was not, or not surely, published
    │   ├── PayloadTooLargeError            over payload_bytes_max
    │   ├── ChannelNameError                not a name that a channel can have
    │   └── NotConfirmedError               no server confirmed it
    ├── SubscribeError                  a subscription that is not in force
    │   ├── SubscribeTimeoutError           no agent answered in time
    │   └── TooManySubscriptionsError       over subscriptions_max
    ├── PlanError                       an entry of a plan that cannot be used
    │   ├── ForgedEntryError                its signature is not the balancer's
    │   ├── StaleEntryError                 older than what we know
    │   └── UnknownServerError              it names a server that the plan does not have
    ├── VersionError                    a format that this version does not read, and what to upgrade
    ├── ProtocolError                   somebody broke the protocol: `broken_by` says who
    ├── CoordinatorError                the coordinator did not do what was asked
    │   ├── ConflictError                   somebody else wrote first
    │   ├── LeaseLostError                  the lease ended before the work did
    │   └── CoordinatorUnavailableError     it cannot be reached
    ├── ClusterError                    a local cluster that cannot start, stop or be found
    │   ├── PortInUseError                  somebody else listens there
    │   ├── AlreadyRunningError             it runs already
    │   └── NotRunningError                 it does not run
    ├── FilterError                     a filter that cannot be read or used, and where it goes wrong
    │   ├── EmptyFilterError                nothing can satisfy it
    │   └── FilterTooLargeError             over one of the limits of filters
    ├── SnapshotError                   a file that is no snapshot of an index, or a damaged one
    ├── EventError                      attributes that no event can have
    ├── ArchiveError                    an archive that is not there, damaged, or of another version
    ├── PipelineError                   a Spark job that cannot start, or cannot go on
    │   ├── NoJavaError                     no Java here, or one that is too old for Spark
    │   ├── NoSparkError                    PySpark is not installed
    │   ├── HeapTooSmallError               the heap of the session does not hold Spark, or the job
    │   ├── TrimmedError                    entries of a stream were dropped before they were read
    │   └── CheckpointError                 what a job has written down does not fit what it finds
    └── BusClosedError                  the bus was closed before the call

Owns: the tree, and the one shape of a message: what happened, then what to do about it. Never touches
anything else of Shoal. An exception that is raised with one argument says it as it is; the keyword `do` adds
the advice.
"""

from __future__ import annotations

from typing import Final, Literal

_EXCERPT_CHARACTERS: Final = 100
"""How much of the line a FilterError shows."""


class ShoalError(Exception):
    """The root: `except ShoalError` catches everything that Shoal raises on purpose."""

    def __init__(self, what: str, *, do: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        """What happened, in one sentence."""
        self.do = do
        """What the reader can do about it, in one sentence; None where `what` says it all."""

    def __str__(self) -> str:
        return self.what if self.do is None else f"{self.what}: {self.do}"


class ConfigError(ShoalError):
    """A setting is unknown, has a value that cannot be, or contradicts another one."""


class ConnectError(ShoalError):
    """No usable connection to a server, an agent or the coordinator."""


class AuthenticationError(ConnectError):
    """The server refused the user name or the password."""


class ServerTooOldError(ConnectError):
    """The server lacks something that Shoal needs (RESP3, ACL users)."""


class ClusterNotFoundError(ConnectError):
    """No cluster runs at the address, or in the state directory, that was asked for."""


class PublishError(ShoalError):
    """A message was not published, or nobody can say that it was."""


class PayloadTooLargeError(PublishError):
    """The payload or the attributes are larger than the limits allow. Nothing was sent."""


class ChannelNameError(PublishError):
    """The name is no text or bytes, empty, too long, or in the part that Shoal keeps for itself. Nothing was sent."""


class NotConfirmedError(PublishError):
    """No server confirmed the message in time. It may have arrived; publishing it again may double it."""


class SubscribeError(ShoalError):
    """A subscription is not in force."""


class SubscribeTimeoutError(SubscribeError, TimeoutError):
    """No agent put the subscription in force within `subscribe_timeout_s`."""


class TooManySubscriptionsError(SubscribeError):
    """The bus holds `subscriptions_max` subscriptions already."""


class PlanError(ShoalError):
    """An entry of the plan cannot be used. The plan that is in use stays in use."""


class ForgedEntryError(PlanError):
    """The signature of the entry is missing or is not the balancer's. The entry is dropped."""


class StaleEntryError(PlanError):
    """The entry is older than the one in use. The entry is dropped."""


class UnknownServerError(PlanError):
    """The entry names a server that the plan does not list."""


class VersionError(ShoalError):
    """Something was written in a format that this version of Shoal does not read: `do` says what to upgrade."""


class ProtocolError(ShoalError):
    """Bytes or a call that the protocol does not allow, and who is to blame for them.

    `broken_by` is "peer" when garbage came in (the connection or the message is given up, nothing else), and
    "us" when the caller asked a core for something that its state does not allow (a bug on our side).
    """

    def __init__(self, what: str, *, broken_by: Literal["us", "peer"] = "peer", do: str | None = None) -> None:
        super().__init__(what, do=do)
        self.broken_by: Literal["us", "peer"] = broken_by

    def __str__(self) -> str:
        blame = "we broke the protocol" if self.broken_by == "us" else "the peer broke the protocol"
        return f"{blame}: {super().__str__()}"


class CoordinatorError(ShoalError):
    """The coordinator did not do what was asked."""


class ConflictError(CoordinatorError):
    """The value has another version than the one that was compared. Read it again, then decide again."""


class LeaseLostError(CoordinatorError):
    """The lease ended. Stop whatever it allowed at once; somebody else may hold it already."""


class CoordinatorUnavailableError(CoordinatorError, ConnectionError):
    """The coordinator cannot be reached. Data flows on by the last plan; nothing can be changed until it is
    back."""


class ClusterError(ShoalError):
    """A local cluster cannot be started, stopped or looked at."""


class PortInUseError(ClusterError):
    """Somebody else listens on the port."""


class AlreadyRunningError(ClusterError):
    """A cluster runs in this state directory already."""


class NotRunningError(ClusterError):
    """No cluster runs in this state directory."""


class FilterError(ShoalError):
    """A filter cannot be read or used. Where it was text, the message shows the line and points at the place.

    `text` is what was read and `position` the offset in it, in characters; both are None for a filter that was not
    text. `expected` names what could have stood there.
    """

    def __init__(
        self,
        what: str,
        *,
        do: str | None = None,
        text: str | None = None,
        position: int | None = None,
        expected: tuple[str, ...] = (),
    ) -> None:
        super().__init__(what, do=do)
        self.text = text
        self.position = position
        self.expected = expected

    def __str__(self) -> str:
        if self.text is None or self.position is None:
            return super().__str__()
        before = self.text[: self.position]
        line, column = before.count("\n") + 1, self.position - before.rfind("\n")
        return f"line {line}, column {column}: {super().__str__()}\n{_pointed_at(self.text, self.position)}"


class EmptyFilterError(FilterError):
    """Nothing can satisfy the filter: its predicates contradict each other. Nothing was subscribed."""


class FilterTooLargeError(FilterError):
    """The filter, or a part of it, is larger than the limits allow. Nothing was subscribed."""


class SnapshotError(ShoalError):
    """A file is no snapshot of an index, is damaged, or was cut short. Nothing was loaded."""


class EventError(ShoalError):
    """Attributes that no event can have: their names, their values or their number. Nothing was sent."""


class ArchiveError(ShoalError):
    """An archive is not there, is damaged, is of another version, or is written by somebody else. Nothing was lost."""


class PipelineError(ShoalError):
    """A Spark job cannot start, or cannot go on. What it has written stays as it is."""


class NoJavaError(PipelineError):
    """There is no Java here, or one that is too old for Spark."""


class NoSparkError(PipelineError):
    """PySpark is not installed where this program runs."""


class HeapTooSmallError(PipelineError):
    """The heap of the Spark session does not hold Spark itself, or what the job needs."""


class TrimmedError(PipelineError):
    """Entries of a stream were dropped before the job had read them. The job did not go on without saying so."""


class CheckpointError(PipelineError):
    """What a job has written down is missing, damaged, or of another job. Nothing was overwritten."""


class BusClosedError(ShoalError):
    """The bus is closed; nothing can be published on it, and no subscription on it goes on."""

    def __init__(
        self, what: str = "the bus is closed", *, do: str | None = "open a new one with shoal.connect()"
    ) -> None:
        super().__init__(what, do=do)


def _pointed_at(text: str, position: int) -> str:
    """The part of the line around a position, and a caret under it."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : len(text) if end < 0 else end]
    column = position - start
    cut = max(0, column - _EXCERPT_CHARACTERS // 2)
    shown = "".join(c if c.isprintable() else " " for c in line[cut : cut + _EXCERPT_CHARACTERS])
    return f"    {shown}\n    {' ' * (column - cut)}^"
