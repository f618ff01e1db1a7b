"""With the agents' secrets the scanner takes numbers of authentic messages only, and lists the others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.channels.observed import observed

from shoal.channels.telemetry.lane_check import COPY, FALSE, FRESH, UNTOLD
from shoal.channels.telemetry.scanner import OVERFLOW_MAX, Scanner
from shoal.channels.telemetry.tables import CLIENT_STREAMS_MAX, REFUTED_MAX, SECRETS_MAX, TableLimits
from shoal.wire import envelope
from shoal.wire.envelope import BEACON, ENDED, FINAL, FORWARDED, HEADER, UNKNOWN_FLAGS, stream_id
from shoal.wire.identity import AgentSecret
from shoal.wire.lane_tag import TAG_AT, covered_end, lane_state, mark_of, tagged

pytestmark = pytest.mark.usefixtures("every_loops")

OLD, NEW = (AgentSecret(generation, bytes((generation,)) * 32) for generation in (1, 2))
TILE = b"tile"
VICTIM, ATTACKER = 0xA11CE, 0xBAD
STREAM = stream_id(VICTIM, 1)


def scanner(limits: TableLimits | None = None, *secrets: AgentSecret) -> Scanner:
    made = Scanner(1 << 20, limits)
    made.set_secrets("s1", [secret.clients for secret in (secrets or (NEW,))])
    return made


def message(
    sequence: int, flags: int = 0, stream: int = STREAM, words: int = 0, body: bytes = b"", version: int = 1
) -> bytes:
    header = HEADER.pack(envelope.MAGIC, flags, version, stream, sequence, 5)
    return header[:3] + bytes((words,)) + header[4:] + bytes(at % 256 for at in range(8 * words)) + body


def signed(
    blob: bytes, channel: bytes = TILE, server: str = "s1", secret: AgentSecret = NEW, client: int = VICTIM
) -> bytes:
    return tagged(blob, lane_state(secret.client(client).lane(server, channel)))


def take(into: Scanner, blob: bytes, channel: bytes = TILE) -> None:
    into.feed(observed(channel, blob), 0)
    while into.scan() is not None:
        pass


def mark(blob: bytes) -> int:
    return mark_of(blob[: covered_end(blob)])


@settings(deadline=None)
@given(
    flags=st.integers(0, 15),
    words=st.integers(0, 30),
    body=st.binary(min_size=8, max_size=8),
    channel=st.binary(min_size=1, max_size=200).filter(lambda name: not name.startswith(b"__shoal:")),
    server=st.text(min_size=1, max_size=60),
    altered=st.integers(0, 39),
)
def test_a_number_counts_only_with_the_tag_of_hashlib(
    flags: int, words: int, body: bytes, channel: bytes, server: str, altered: int
) -> None:
    here = Scanner(1 << 20)
    here.set_secrets(server, [NEW.clients])
    true = signed(message(7, flags, words=words % 16, body=body), channel, server)
    last = 7 | ENDED if flags & BEACON and flags & FINAL else 7
    take(here, true, channel)
    assert here.streams(channel).streams == [(STREAM, last)]
    assert not here.refutes
    if altered not in (0, 1, 3):
        false = true[:altered] + bytes((true[altered] ^ 8,)) + true[altered + 1 :]
        take(here, false, channel)
        assert here.streams(channel).streams == [(STREAM, last)]


@pytest.mark.parametrize(
    "false",
    [
        message(1 << 60),
        message(1 << 60, BEACON, body=bytes(8)),
        message(5, BEACON | FINAL, body=bytes(8)),
        signed(message(6), client=ATTACKER),
        signed(message(6), channel=b"other"),
        signed(message(6), server="s2"),
        signed(message(6), secret=OLD),
        signed(message(6))[:16] + message(9)[16:24] + signed(message(6))[24:],
        signed(message(6), client=VICTIM)[:TAG_AT] + bytes(8),
    ],
)
def test_a_false_claim_is_listed_and_changes_nothing(false: bytes) -> None:
    here = scanner()
    take(here, signed(message(5)))
    take(here, false)
    listing = here.streams(TILE)
    assert (listing.streams, listing.complete) == ([(STREAM, 5)], True)
    assert here.refutes
    _, _, _, _, sequence, _ = HEADER.unpack_from(false)
    assert here.take_refuted() == ({TILE: [(STREAM, sequence, mark(false))]}, [])
    assert here.take_refuted() == ({}, [])


def test_made_up_streams_take_no_room() -> None:
    here = scanner(TableLimits(streams_per_channel_max=3))
    for client in range(1, 1000):
        take(here, message(1, stream=stream_id(client, 1)))
    take(here, signed(message(1)))
    listing = here.streams(TILE)
    assert (listing.streams, listing.complete) == ([(STREAM, 1)], True)


def test_a_client_cannot_fill_a_channel_for_others() -> None:
    here = scanner(TableLimits(streams_per_channel_max=CLIENT_STREAMS_MAX + 1))
    for epoch in range(100):
        take(here, signed(message(1, stream=stream_id(ATTACKER, epoch)), client=ATTACKER))
    take(here, signed(message(1)))
    listing = here.streams(TILE)
    assert (len(listing.streams), listing.complete) == (CLIENT_STREAMS_MAX + 1, True)
    assert (STREAM, 1) in listing.streams
    refused = here.take_refuted().messages[TILE]
    assert [stream for stream, _, _ in refused] == [stream_id(ATTACKER, n) for n in range(CLIENT_STREAMS_MAX, 100)]
    assert not here.set_stream(TILE, stream_id(ATTACKER, 100), 1)
    assert here.set_stream(b"other", stream_id(ATTACKER, 100), 1)
    assert here.streams(TILE).complete


def test_a_full_channel_is_incomplete_and_its_messages_are_not_false() -> None:
    here = scanner(TableLimits(streams_per_channel_max=1))
    take(here, signed(message(1)))
    take(here, signed(message(1, stream=stream_id(ATTACKER, 1)), client=ATTACKER))
    assert not here.streams(TILE).complete
    assert not here.refutes


def test_streams_stay_known_when_tables_grow_and_idle_ones_are_forgotten() -> None:
    here = scanner()
    for client in range(1, 1500):
        take(here, signed(message(1, stream=stream_id(client, 1)), client=client))
    here.close_unit()
    here.feed(observed(TILE, signed(message(2, stream=stream_id(9, 1)), client=9)), 100)
    assert here.scan() is None
    take(here, message(3, stream=stream_id(9, 1)), b"gone")
    assert here.forget_idle(50) == (1498, 0)
    take(here, signed(message(3, stream=stream_id(9, 1)), client=9))
    assert here.streams(TILE).streams == [(stream_id(9, 1), 3)]
    assert list(here.take_refuted().messages) == [b"gone"]


def test_every_secret_counts_and_a_stream_may_change_to_a_newer_one() -> None:
    here = scanner(None, NEW, OLD)
    take(here, signed(message(1), secret=OLD))
    take(here, signed(message(2), secret=NEW))
    take(here, signed(message(3), secret=OLD))
    assert here.streams(TILE).streams == [(STREAM, 3)]
    here.set_secrets("s1", [NEW.clients])
    take(here, signed(message(4), secret=OLD))
    assert here.streams(TILE).streams == [(STREAM, 3)]
    with pytest.raises(ValueError, match="secrets"):
        here.set_secrets("s1", [NEW.clients] * (SECRETS_MAX + 1))


def test_a_repeated_message_is_not_named_as_false_because_its_secret_was_dropped() -> None:
    """Its mark is that of the true one, which subscribers would take back."""
    here = scanner(None, NEW, OLD)
    true = [signed(message(number), secret=OLD) for number in (1, 2)]
    for blob in (*true, signed(message(3))):
        take(here, blob)
    here.set_secrets("s1", [NEW.clients])
    take(here, true[1] + b"altered")
    assert not here.refutes
    false = signed(message(4), secret=OLD)
    take(here, false)
    assert here.take_refuted() == ({TILE: [(STREAM, 4, mark(false))]}, [])
    assert here.streams(TILE).streams == [(STREAM, 3)]


def test_a_new_incarnation_keeps_the_secrets() -> None:
    here = scanner()
    here.clear()
    take(here, message(1))
    assert here.streams(TILE).streams == []


def standings(here: Scanner, *blobs: bytes) -> list[int]:
    """What a watched channel tells of each message."""
    here.watch(TILE, True)
    found = []
    for blob in blobs:
        here.feed(observed(TILE, blob), 0)
        frame = here.scan()
        assert frame is not None
        found.append(frame.standing)
    return found


def test_a_watched_message_tells_whether_it_is_authentic_and_new() -> None:
    first, second = signed(message(1)), signed(message(2, FORWARDED))
    beacon = signed(message(1, BEACON, body=bytes(8)))
    unknown = signed(message(3, UNKNOWN_FLAGS & -UNKNOWN_FLAGS))
    here = scanner()
    assert standings(here, first, second) == [UNTOLD, UNTOLD]
    here.set_stream(TILE, STREAM, 0)
    found = standings(here, first, second, first + b"altered", message(3), beacon, b"foreign", unknown)
    assert found == [FRESH, FRESH, COPY, FALSE, FRESH, FRESH, FRESH]
    assert standings(scanner(), message(3, UNKNOWN_FLAGS), message(3, BEACON)) == [FALSE, FALSE]


def test_a_number_is_a_copy_if_its_publisher_or_an_earlier_message_has_told_it() -> None:
    """What beacons and forwarded messages say does not count: the publisher may be behind on this server."""
    here = scanner()
    here.set_stream(TILE, STREAM, 3)
    later = signed(message(9, BEACON, body=bytes(8))), signed(message(9, FORWARDED))
    blobs = signed(message(3)), signed(message(5)), *later, signed(message(4)), signed(message(6))
    assert standings(here, *blobs) == [COPY, FRESH, FRESH, FRESH, COPY, FRESH]
    here.set_stream(TILE, STREAM, 8)
    here.set_stream(TILE, STREAM, 1)
    assert standings(here, signed(message(8)), signed(message(9))) == [COPY, FRESH]


def test_without_secrets_everything_is_taken_as_it_comes() -> None:
    here = Scanner(1 << 20)
    assert standings(here, message(2), message(1), b"foreign") == [FRESH] * 3
    assert here.streams(TILE).streams == [(STREAM, 2)]
    assert not here.refutes


def test_a_channel_without_room_in_the_table_is_checked_too() -> None:
    here = scanner(TableLimits(channels_max=0))
    here.watch_new()
    assert standings(here, signed(message(1)), message(1)) == [FRESH, FALSE]


def test_known_streams_are_listed_first_and_the_rest_is_told_by_channel() -> None:
    here = scanner()
    take(here, signed(message(1)))
    for client in range(1, REFUTED_MAX + 1):
        take(here, message(1, stream=stream_id(client, 1)), b"made up")
    take(here, message(9))
    found = here.take_refuted()
    assert found.messages[TILE] == [(STREAM, 9, mark(message(9)))]
    assert len(found.messages[b"made up"]) == REFUTED_MAX - 1
    assert found.overflow == [b"made up"]
    for number in range(2, REFUTED_MAX + 4):
        take(here, message(number))
    found = here.take_refuted()
    assert len(found.messages[TILE]) == REFUTED_MAX
    assert found.overflow == [TILE]


def test_too_many_channels_to_name_are_all_channels() -> None:
    here = scanner()
    for number in range(REFUTED_MAX):
        take(here, message(number))
    for number in range(OVERFLOW_MAX + 1):
        take(here, message(1), b"c%d" % number)
    assert here.take_refuted().overflow == [b""]


# Bounds


def test_a_message_that_is_too_large_counts_only_with_its_tag() -> None:
    """Its bytes are skipped as they come; all that the tag covers has come before."""
    here = Scanner(1 << 20, observed_bytes_max=5000)
    here.set_secrets("s1", [NEW.clients])
    large = signed(message(7, words=255)) + bytes(10_000)
    false = message(9, words=255) + bytes(10_000)
    for blob in (large, false):
        data = observed(TILE, blob)
        for at in range(0, len(data), 700):
            here.feed(data[at : at + 700], 0)
            while here.scan() is not None:
                pass
    assert here.streams(TILE).streams == [(STREAM, 7)]
    assert here.take_refuted() == ({TILE: [(STREAM, 9, mark(false))]}, [])
    assert here.take_passed_over() == (2, 0, 0)


def test_a_false_message_that_is_too_large_makes_no_listing_incomplete() -> None:
    here = Scanner(1 << 20, observed_bytes_max=5000)
    here.set_secrets("s1", [NEW.clients])
    here.watch(TILE, True)
    take(here, message(9) + bytes(10_000))
    assert here.streams(TILE).complete
    take(here, signed(message(9)) + bytes(10_000))
    assert not here.streams(TILE).complete


def test_lookups_of_new_channels_are_charged_to_the_client_whose_tag_a_message_has() -> None:
    here = scanner()
    here.watch_new(metered=True)
    here.meter["lookups"] = 0
    here.meter["lookups"][here.meter_row(VICTIM)] = 2
    for number in range(5):
        here.feed(observed(b"made-up %d" % number, message(1)), 0)
        assert here.scan() is None
    names = [b"new %d" % number for number in range(3)]
    seen = []
    for name in names:
        here.feed(observed(name, signed(message(1), channel=name)), 0)
        seen.append(here.scan() is not None)
    assert seen == [True, True, False]
    assert here.take_passed_over() == (0, 0, 1)
