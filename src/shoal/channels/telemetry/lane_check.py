"""The compiled check of the tags of published messages (see `shoal.wire.lane_tag` and docs/identity.md).

Owns how the scanner finds the key of a stream's publisher, and what it notes about messages whose tag is false. The key
is derived at the stream's first message from the agents' secret and kept in the stream's record, so that a message
costs one compression. Nothing of a message with a false tag enters the tables of channels and streams. Never touches a
socket or a clock.

The scan knows the keys of known streams. For any other message `take_number` answers `UNKNOWN_LANE`; the scan then
calls `find_lane`, which leaves its result in the cursor, and takes the message again. `find_lane` is a kernel of its
own: inlined, the scan would take a minute to compile.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from shoal.channels.telemetry.tables import (
    MISSING,
    NO_ROOM,
    REFUSED,
    REFUTED_MAX,
    TICKS_PER_S,
    UNTOLD_LAST,
    Tables,
    enter_stream,
    find_stream,
    raise_last,
)
from shoal.wire import lane_tag
from shoal.wire.blake2s import (
    BLOCK_BYTES,
    KEY_BYTES,
    State,
    compress,
    hash_bytes,
    keyed_state,
    label_words,
    load_block,
    load_words,
    plain_state,
    take_block,
)
from shoal.wire.envelope import BEACON, ENDED, EPOCH_BITS, FINAL, FORWARDED, HEADER_BYTES, UNKNOWN_FLAGS, US_PER_S
from shoal.wire.identity import MESSAGE_TAG_BYTES, derive
from shoal.wire.lane_tag import MARK_LABEL, TAG_AT, TAG_LABEL, lane_state, mark_of
from shoal.wire.loop_source import Bytes, Records, kernel, kernel_from, load_u64, part, part_from

FALSE: Final = 0
COPY: Final = 1
FRESH: Final = 2
UNTOLD: Final = 3
"""The standing of a message. `FALSE`: its tag is false. `COPY`: it is authentic, but its number has been published here
before, so its payload may be another one. `FRESH`: it is authentic and new. `UNTOLD`: authentic, but its publisher has
not told yet how far the stream had come when the agent began to listen, so it is new or a copy. Beacons, foreign
messages, and all those on a server without secrets are taken as they come: `FRESH`."""

UNKNOWN_LANE: Final = -10
"""The key of the message's publisher is not known yet."""

_FLAGS_AT: Final = 2
_EXTENSION_AT: Final = 3
_STREAM_AT: Final = 8
_SEQUENCE_AT: Final = 16
_TIME_AT: Final = 24
_SETTLED_BYTES: Final = 8
_US_PER_TICK: Final = np.uint64(US_PER_S // TICKS_PER_S)
_QUIET_TICKS_MAX: Final = np.int64(2**30)
_ENDED: Final = np.uint64(ENDED)
_UNTOLD_LAST: Final = np.uint64(UNTOLD_LAST)
_EPOCH_BITS: Final = np.uint64(EPOCH_BITS)
_HALF: Final = np.uint64(32)
_CLIENT: Final = label_words(b"client")
_LANE: Final = label_words(b"lane")
_MESSAGE: Final = label_words(TAG_LABEL)
_REFUTED: Final = label_words(MARK_LABEL)
_EMPTY: Final = np.uint64(0)
_KEY: Final = struct.Struct("<QQQQ")


@part
def packed(key: State) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """A key as a stream's record keeps it."""
    return (
        np.uint64(key[0]) | np.uint64(key[1]) << _HALF,
        np.uint64(key[2]) | np.uint64(key[3]) << _HALF,
        np.uint64(key[4]) | np.uint64(key[5]) << _HALF,
        np.uint64(key[6]) | np.uint64(key[7]) << _HALF,
    )


@part
def unpacked(k0: np.uint64, k1: np.uint64, k2: np.uint64, k3: np.uint64) -> State:
    """The key that a stream's record keeps."""
    return (
        np.uint32(k0), np.uint32(k0 >> _HALF), np.uint32(k1), np.uint32(k1 >> _HALF),
        np.uint32(k2), np.uint32(k2 >> _HALF), np.uint32(k3), np.uint32(k3 >> _HALF),
    )  # fmt: skip


@kernel
def derive_lane(
    tables: Tables, name: Bytes, name_at: int, name_bytes: int, stream: np.uint64, secret: int
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """The key for the messages of a stream on a channel of this server, by one of the agents' secrets."""
    scratch = tables.scratch
    head = tables.head[0]
    k = load_block(tables.secrets, KEY_BYTES * secret, KEY_BYTES * (secret + 1))
    state = keyed_state((k[0], k[1], k[2], k[3], k[4], k[5], k[6], k[7]), _CLIENT, KEY_BYTES)
    client = stream >> _EPOCH_BITS
    at = head.lane_prefix_bytes
    for offset in range(8):
        scratch[at + offset] = np.uint8(client >> np.uint64(8 * offset))
    client_key = hash_bytes(state, scratch, at, 8)
    for offset in range(name_bytes):
        scratch[at + offset] = name[name_at + offset]
    return packed(hash_bytes(keyed_state(client_key, _LANE, KEY_BYTES), scratch, 0, at + name_bytes))


@kernel
def long_tag(state: State, data: Bytes, at: int, end: int, hashed: int) -> State:
    """The rest of a tag over more than one block."""
    while at + BLOCK_BYTES < end:
        hashed += BLOCK_BYTES
        state = take_block(state, load_block(data, at, end), hashed, False)
        at += BLOCK_BYTES
    return take_block(state, load_block(data, at, end), hashed + end - at, True)


def has_tag_by_words(
    k0: np.uint64, k1: np.uint64, k2: np.uint64, k3: np.uint64, data: Bytes, at: int, extra: int
) -> bool:
    """`has_tag`, compiled."""
    after = at + HEADER_BYTES
    end = after + extra
    key = unpacked(k0, k1, k2, k3)
    m8, m9 = load_words(data, at, end)
    ma, mb = load_words(data, at + 8, end)
    mc, md = load_words(data, at + 16, end)
    me, mf = load_words(data, at + 24, end)
    block = key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7], m8, m9, ma, mb, mc, md, me, mf
    state = compress(plain_state(_MESSAGE, MESSAGE_TAG_BYTES), block, BLOCK_BYTES, extra == 0)
    if extra:
        state = long_tag(state, data, after, end, BLOCK_BYTES)
    return bool((np.uint64(state[0]) | np.uint64(state[1]) << _HALF) == load_u64(data, at + TAG_AT))


@part_from(has_tag_by_words)
def has_tag(k0: np.uint64, k1: np.uint64, k2: np.uint64, k3: np.uint64, data: Bytes, at: int, extra: int) -> bool:
    """Whether the message at an index has the tag of a lane; `extra` bytes behind the header are covered too."""
    lane = lane_state(_KEY.pack(int(k0), int(k1), int(k2), int(k3)))
    return lane_tag.has_tag(data[at : at + HEADER_BYTES + extra].tobytes(), lane)


@part
def covered_bytes(data: Bytes, at: int) -> int:
    """How many bytes behind the header a tag covers: the extension, and a beacon's body."""
    settled = _SETTLED_BYTES if data[at + _FLAGS_AT] & BEACON else 0
    return 8 * int(data[at + _EXTENSION_AT]) + settled


def find_lane_by_words(data: Bytes, cursors: Records, tables: Tables) -> None:
    """`find_lane`, compiled."""
    cursor = cursors[0]
    at = cursor.payload_at
    name_bytes = cursor.name_end - cursor.name_at
    cursor.lane_of = at
    cursor.lane_found = 0
    z = np.uint32(0)
    mark = hash_bytes(
        keyed_state((z, z, z, z, z, z, z, z), _REFUTED, MESSAGE_TAG_BYTES),
        data,
        at,
        HEADER_BYTES + covered_bytes(data, at),
    )
    cursor.mark = np.int64(np.uint64(mark[0]) | np.uint64(mark[1]) << _HALF)
    if name_bytes <= tables.head[0].channel_name_bytes_max:
        stream = load_u64(data, at + _STREAM_AT)
        for secret in range(tables.head[0].secrets):
            k0, k1, k2, k3 = derive_lane(tables, data, cursor.name_at, name_bytes, stream, secret)
            if has_tag(k0, k1, k2, k3, data, at, covered_bytes(data, at)):
                cursor.lane_found = 1
                cursor.k0, cursor.k1, cursor.k2, cursor.k3 = np.int64(k0), np.int64(k1), np.int64(k2), np.int64(k3)
                return


@kernel_from(find_lane_by_words)
def find_lane(data: Bytes, cursors: Records, tables: Tables) -> None:
    """Finds out whether the message at which the scan stopped is authentic by any of the secrets."""
    cursor, head = cursors[0], tables.head[0]
    at = int(cursor.payload_at)
    covered = data[at : at + HEADER_BYTES + covered_bytes(data, at)].tobytes()
    name = data[int(cursor.name_at) : int(cursor.name_end)].tobytes()
    cursor.lane_of = at
    cursor.lane_found = 0
    cursor.mark = np.int64(np.uint64(mark_of(covered)))
    if len(name) > head.channel_name_bytes_max:
        return
    server_and_name = tables.scratch[: head.lane_prefix_bytes].tobytes() + name
    client = int(load_u64(data, at + _STREAM_AT) >> _EPOCH_BITS).to_bytes(8, "little")
    for secret in range(head.secrets):
        key = tables.secrets[KEY_BYTES * secret : KEY_BYTES * (secret + 1)].tobytes()
        lane_key = derive(derive(key, b"client", client), b"lane", server_and_name)
        if lane_tag.has_tag(covered, lane_state(lane_key)):
            cursor.lane_found = 1
            cursor.k0, cursor.k1, cursor.k2, cursor.k3 = np.frombuffer(lane_key, np.int64)
            return


@part
def take_number(tables: Tables, cursor: Records, channel: int, data: Bytes, at: int) -> int:
    """Notes the number of the message at an index if the message is authentic. Returns its standing, or `NO_ROOM`: call
    `grow` and try again, or `UNKNOWN_LANE`: call `find_lane` and try again. Numbers of messages with unknown flags are
    not noted.

    A message with a false tag is listed, unless its number was published when an earlier secret was in use: then it may
    be a true one that another client repeats, with the same header, and subscribers would take back the true one."""
    head = tables.head[0]
    flags = np.int64(data[at + _FLAGS_AT])
    stream = load_u64(data, at + _STREAM_AT)
    sequence = load_u64(data, at + _SEQUENCE_AT)
    index = find_stream(tables, channel, stream)
    if head.secrets:
        known = False
        if index != MISSING:
            record = tables.streams[index]
            k0, k1, k2, k3 = record.k0, record.k1, record.k2, record.k3
            known = (k0 | k1 | k2 | k3) != _EMPTY
            known = known and has_tag(k0, k1, k2, k3, data, at, covered_bytes(data, at))
        if not known and cursor.lane_of != at:
            return UNKNOWN_LANE
        if not known and not cursor.lane_found:
            if index == MISSING or sequence > tables.streams[index].uncheckable:
                refute(tables, channel, stream, sequence, np.uint64(cursor.mark), index != MISSING)
            return FALSE
    if flags & UNKNOWN_FLAGS:
        return FRESH
    if index == MISSING:
        index = enter_stream(tables, channel, stream)
        if index == NO_ROOM:
            return NO_ROOM
        if index == REFUSED:
            if head.secrets and tables.channels[channel].refused_tick != head.tick:
                refute(tables, channel, stream, sequence, np.uint64(cursor.mark), False)
                return FALSE
            return FRESH
    record = tables.streams[index]
    if head.secrets and not known:
        record.k0, record.k1 = np.uint64(cursor.k0), np.uint64(cursor.k1)
        record.k2, record.k3 = np.uint64(cursor.k2), np.uint64(cursor.k3)
    standing = FRESH
    if head.secrets and not flags & BEACON:
        if record.above == _UNTOLD_LAST:
            standing = UNTOLD
        elif sequence <= record.above:
            standing = COPY
        elif not flags & FORWARDED:
            record.above = sequence
    quiet_ticks = np.int64(0)
    if flags & BEACON:
        quiet_ticks = min(np.int64(load_u64(data, at + _TIME_AT) // _US_PER_TICK), _QUIET_TICKS_MAX)
        if flags & FINAL:
            sequence |= _ENDED
    raise_last(tables, index, sequence, (flags & (BEACON | FORWARDED)) == 0, int(quiet_ticks))
    return standing


@part
def refute(tables: Tables, channel: int, stream: np.uint64, sequence: np.uint64, mark: np.uint64, known: bool) -> None:
    """Lists a message with a false tag. Streams that the agent knows come first; channels for whose messages there is
    no room are marked."""
    head = tables.head[0]
    row = head.refuted
    if row < REFUTED_MAX:
        head.refuted += 1
    else:
        row = 0
        while row < REFUTED_MAX and (not known or tables.refuted[row].known):
            row += 1
        spilled = channel if row == REFUTED_MAX else tables.refuted[row].channel
        tables.channels[spilled].overflowed = 1
        head.overflows += 1
        if row == REFUTED_MAX:
            return
    entry = tables.refuted[row]
    entry.channel = channel
    entry.known = known
    entry.stream = stream
    entry.number = sequence
    entry.mark = mark
