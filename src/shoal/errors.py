"""Every exception that Shoal raises on purpose, in one tree.

    ShoalError
    ├── ConfigError                     an invalid setting, and its source
    ├── MissingExtraError               a package is not installed, and the extra that has it
    ├── ConnectError                    no usable connection
    │   ├── AuthenticationError             wrong user or password
    │   ├── ServerTooOldError               the server lacks a required feature
    │   ├── UnreachableError                no server of a channel can be used
    │   ├── TlsError                        no trusted TLS connection: files, certificates, or a side without TLS
    │   ├── ClusterNotFoundError            no cluster at this address
    │   ├── EnrolmentError                  no agent gave this client an id
    │   └── IdentityExpiredError            agents authenticate in another way than this client
    ├── PublishError                    a message was not published, or may not have been
    │   ├── PayloadTooLargeError            above payload_bytes_max
    │   ├── ChannelNameError                not a valid channel name
    │   └── NotConfirmedError               no server confirmed the message
    ├── SubscribeError                  a subscription is not in force
    │   ├── SubscribeTimeoutError           no agent answered in time
    │   └── TooManySubscriptionsError       above subscriptions_max
    ├── PlanError                       an unusable plan entry
    │   ├── ForgedEntryError                not signed with the cluster's key
    │   ├── StaleEntryError                 older than the known entry
    │   └── UnknownServerError              names a server that is not in the plan
    ├── VersionError                    an unknown format or protocol version, and what to upgrade
    ├── ProtocolError                   a protocol violation; `broken_by` is "us" or "peer"
    ├── CoordinatorError                the coordinator rejected a request
    │   ├── ConflictError                   another client wrote first
    │   ├── LeaseLostError                  the lease expired during the work
    │   ├── DataLostError                   the coordinator has lost data
    │   └── CoordinatorUnavailableError     the coordinator is unreachable
    ├── BackupError                     a backup cannot be written, read or restored
    ├── ClusterError                    a local cluster cannot be started, stopped or found
    │   ├── PortInUseError                  another process uses the port
    │   ├── AlreadyRunningError             the cluster is already running
    │   └── NotRunningError                 the cluster is not running
    ├── FilterError                     an invalid filter, with the position of the error
    │   ├── EmptyFilterError                no event can match it
    │   └── FilterTooLargeError             above a filter limit
    │       └── IndexFullError                  this index has no room for it
    ├── QueueError                      an operation on a queue failed
    │   ├── QueueNotFoundError              there is no such queue
    │   ├── QueueNameError                  not a valid name of a queue, key or message id
    │   ├── QueueFullError                  the queue holds as many messages or bytes as it may
    │   ├── TooManyKeysError                the queue holds as many keys as it may
    │   ├── TooManyIdsError                 the queue remembers as many message ids as it may
    │   ├── AlreadyAcceptedError            a message with this id was accepted before
    │   ├── JobLostError                    this consumer does not hold the job any more
    │   ├── ConsumerInactiveError           this consumer did not acknowledge a message
    │   ├── DeadLettersFullError            no room for a message that failed for the last time
    │   ├── StoreFullError                  the store has no memory or disk left
    │   └── QueueUnavailableError           the store of the queue does not answer
    ├── EngineUnavailableError          the engine does not answer, or has no room for this client
    ├── SnapshotError                   not an index snapshot, or a damaged one
    ├── EventError                      invalid event attributes
    ├── ArchiveError                    a missing, damaged or incompatible archive
    ├── PipelineError                   a Spark job cannot start or continue
    │   ├── NoJavaError                     no Java, or one too old for Spark
    │   ├── HeapTooSmallError               the Java heap is too small for Spark or the job
    │   ├── TrimmedError                    stream entries were dropped before they were read
    │   └── CheckpointError                 a checkpoint is missing, damaged or of another job
    └── BusClosedError                  the bus is closed

Owns the tree and the format of messages: what happened, then what to do. It depends on nothing else in Shoal. An
exception raised with one argument shows it unchanged; the keyword `do` adds the advice.
"""

from __future__ import annotations

from typing import Final, Literal

_EXCERPT_CHARACTERS: Final = 100
"""Length of the excerpt that a FilterError shows."""


class ShoalError(Exception):
    """The base class: `except ShoalError` catches everything that Shoal raises on purpose."""

    def __init__(self, what: str, *, do: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        """What happened, in one sentence."""
        self.do = do
        """What to do, in one sentence; None if `what` is enough."""

    def __str__(self) -> str:
        return self.what if self.do is None else f"{self.what}: {self.do}"


class ConfigError(ShoalError):
    """A setting is unknown, has an invalid value, or contradicts another one."""


class MissingExtraError(ShoalError, ImportError):
    """A package of an optional extra is not installed. The message names the extra."""


class ConnectError(ShoalError):
    """No usable connection to a server, an agent or the coordinator."""


class AuthenticationError(ConnectError):
    """The server refused the user name or the password."""


class ServerTooOldError(ConnectError):
    """The server lacks a feature that Shoal needs (RESP3, ACL users)."""


class TlsError(ConnectError):
    """No TLS connection that both sides trust: unusable files, a certificate that one side refuses, or one side that
    does not use TLS. Follow the advice in `do` before you try again."""


class UnreachableError(ConnectError):
    """None of a subscription's servers could be used for `unreachable_s`. The bus keeps trying and the subscription
    stays open: read again to wait. Messages that were missed meanwhile are fetched, or reported as a gap.
    """


class ClusterNotFoundError(ConnectError):
    """No cluster runs at the given address or in the given state directory."""


class EnrolmentError(ConnectError, TimeoutError):
    """No agent of the cluster gave this client an id and a key within `enrol_timeout_s`."""


class IdentityExpiredError(ConnectError):
    """The agents authenticate messages and this bus does not, or vice versa: the cluster was created again."""


class PublishError(ShoalError):
    """A message was not published, or it is unknown whether it was."""


class PayloadTooLargeError(PublishError):
    """The payload or the attributes are larger than the limits allow. Nothing was sent."""


class ChannelNameError(PublishError):
    """The name is not text or bytes, empty, too long, or reserved for Shoal. Nothing was sent."""


class NotConfirmedError(PublishError):
    """No server confirmed the message in time. It may have arrived; publishing it again may duplicate it."""


class SubscribeError(ShoalError):
    """A subscription is not in force."""


class SubscribeTimeoutError(SubscribeError, TimeoutError):
    """No agent has answered for the subscription within `subscribe_timeout_s`."""


class TooManySubscriptionsError(SubscribeError):
    """The bus already has `subscriptions_max` subscriptions."""


class PlanError(ShoalError):
    """A plan entry is unusable. The current plan stays in use."""


class ForgedEntryError(PlanError):
    """The signature of the entry is missing or was not made with the cluster's key. The entry is dropped."""


class StaleEntryError(PlanError):
    """The entry is older than the one in use. The entry is dropped."""


class UnknownServerError(PlanError):
    """The entry names a server that is not in the plan."""


class VersionError(ShoalError):
    """A format or a protocol version that this process does not know; `do` says what to upgrade."""


class ProtocolError(ShoalError):
    """A violation of the protocol, and which side caused it.

    `broken_by` is "peer" if invalid data arrived (only that connection or message is dropped), and "us" if the caller
    asked a core for an operation that its state does not allow (a bug in Shoal).
    """

    def __init__(self, what: str, *, broken_by: Literal["us", "peer"] = "peer", do: str | None = None) -> None:
        super().__init__(what, do=do)
        self.broken_by: Literal["us", "peer"] = broken_by

    def __str__(self) -> str:
        blame = "we broke the protocol" if self.broken_by == "us" else "the peer broke the protocol"
        return f"{blame}: {super().__str__()}"


class CoordinatorError(ShoalError):
    """The coordinator rejected a request."""


class ConflictError(CoordinatorError):
    """The value has another version than expected. Read it again, then decide again."""


class LeaseLostError(CoordinatorError):
    """The lease expired. Stop the work that needs it immediately; another process may already hold it."""


class DataLostError(CoordinatorError):
    """The coordinator came back with less data than before. Copies that are already known stay in use."""


class CoordinatorUnavailableError(CoordinatorError, ConnectionError):
    """The coordinator is unreachable. Messages keep flowing with the last plan; changes have to wait."""


class BackupError(ShoalError):
    """A backup of the coordinator cannot be written, read or restored. A coordinator that has data is unchanged."""


class ClusterError(ShoalError):
    """A local cluster cannot be started, stopped or inspected."""


class PortInUseError(ClusterError):
    """Another process listens on the port."""


class AlreadyRunningError(ClusterError):
    """A cluster is already running in this state directory."""


class NotRunningError(ClusterError):
    """No cluster is running in this state directory."""


class FilterError(ShoalError):
    """A filter cannot be parsed or used. For a filter text, the message shows the line and marks the position.

    `text` is the filter text and `position` the offset in characters; both are None for a filter that was not parsed
    from text. `expected` lists the tokens that would have been valid there.
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
    """No event can match the filter: its predicates contradict each other. Nothing was subscribed."""


class FilterTooLargeError(FilterError):
    """The filter, or a part of it, is above a limit. Nothing was subscribed."""


class IndexFullError(FilterTooLargeError):
    """This index has no room for the filter; another one may have. Nothing was subscribed."""


class QueueError(ShoalError):
    """An operation on a queue failed."""


class QueueNotFoundError(QueueError):
    """There is no queue of this name. Nothing was stored."""


class QueueNameError(QueueError):
    """The name of a queue, a key or a message id is empty, too long, or has invalid characters. Nothing was stored."""


class QueueFullError(QueueError):
    """The queue holds `messages_max` messages or `bytes_max` bytes. The message was not stored."""


class TooManyKeysError(QueueError):
    """The queue holds messages of `keys_max` keys. The message, which has a new key, was not stored."""


class TooManyIdsError(QueueError):
    """The queue remembers `dedupe_ids_max` message ids. The message was not stored, because a duplicate of it could not
    be recognised."""


class AlreadyAcceptedError(QueueError):
    """A message with this id and key was accepted within `dedupe_s`. This one was not stored."""


class JobLostError(QueueError):
    """This consumer does not hold the job any more: its lease ended, or the queue was purged. Another consumer may
    already have the message; undo or ignore the work done for it."""


class ConsumerInactiveError(QueueError):
    """This consumer got a message several times and did not acknowledge it within `ack_timeout`. It has left the queue,
    and its messages went to others."""


class DeadLettersFullError(QueueError):
    """The message failed for the last time, and there are `dead_max` dead letters. It stays at the head of its key, and
    the key is halted."""


class StoreFullError(QueueError):
    """The store has no memory or disk left. Nothing was stored."""


class QueueUnavailableError(QueueError, ConnectionError):
    """The store of the queue did not answer in time. Unless it says otherwise, a message may have been stored: put it
    again with the same `id`, and it is stored once."""


class EngineUnavailableError(ShoalError, ConnectionError):
    """The engine of the cluster did not answer in time, or has no room for this client."""


class SnapshotError(ShoalError):
    """A file is not an index snapshot, or is damaged or truncated. Nothing was loaded."""


class EventError(ShoalError):
    """Invalid event attributes: their names, values or number. Nothing was sent."""


class ArchiveError(ShoalError):
    """An archive is missing, damaged, of another version, or in use by another writer. Nothing was lost."""


class PipelineError(ShoalError):
    """A Spark job cannot start or continue. Its output is unchanged."""


class NoJavaError(PipelineError):
    """Java is missing, or too old for Spark."""


class HeapTooSmallError(PipelineError):
    """The heap of the Spark session is too small for Spark itself or for the job."""


class TrimmedError(PipelineError):
    """Stream entries were dropped before the job read them. The job stopped instead of skipping them silently."""


class CheckpointError(PipelineError):
    """A job's checkpoint is missing, damaged, or of another job. Nothing was overwritten."""


class BusClosedError(ShoalError):
    """The bus is closed; it cannot publish, and its subscriptions have ended."""

    def __init__(
        self, what: str = "the bus is closed", *, do: str | None = "open a new one with shoal.connect()"
    ) -> None:
        super().__init__(what, do=do)


def _pointed_at(text: str, position: int) -> str:
    """Return the part of the line around a position, with a caret below it."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : len(text) if end < 0 else end]
    column = position - start
    cut = max(0, column - _EXCERPT_CHARACTERS // 2)
    shown = "".join(c if c.isprintable() else " " for c in line[cut : cut + _EXCERPT_CHARACTERS])
    return f"    {shown}\n    {' ' * (column - cut)}^"
