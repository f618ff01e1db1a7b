"""Hashes of many channel names at once: the ring's BLAKE2b, and Redis Cluster's key slots.

Owns the two compiled loops. They agree with `shoal.plan.ring.ring_hash` and with `CLUSTER KEYSLOT`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.wire.raw_bytes import kernel

Hashes = npt.NDArray[np.uint64]
Slots = npt.NDArray[np.int32]

SLOTS: Final = 16384
"""Number of slots in Redis Cluster."""

_BLOCK: Final = 128
_ROUNDS: Final = 12
_PARAMETERS: Final = 0x01010008
"""BLAKE2b's first parameter word: digest of 8 bytes, no key, no tree."""
_IV: Final = np.array(
    [
        0x6A09E667F3BCC908,
        0xBB67AE8584CAA73B,
        0x3C6EF372FE94F82B,
        0xA54FF53A5F1D36F1,
        0x510E527FADE682D1,
        0x9B05688C2B3E6C1F,
        0x1F83D9ABFB41BD6B,
        0x5BE0CD19137E2179,
    ],
    np.uint64,
)
_SIGMA: Final = np.array(
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
        [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
        [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
        [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
        [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
        [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
        [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
        [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
        [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
    ],
    np.int64,
)
_LANES: Final = np.array(
    [
        [0, 4, 8, 12],
        [1, 5, 9, 13],
        [2, 6, 10, 14],
        [3, 7, 11, 15],
        [0, 5, 10, 15],
        [1, 6, 11, 12],
        [2, 7, 8, 13],
        [3, 4, 9, 14],
    ],
    np.int64,
)
_CRC_POLYNOMIAL: Final = 0x1021
_OPEN: Final = ord("{")
_CLOSE: Final = ord("}")


def ring_hashes(names: pa.Array) -> Hashes:
    """Return the position of each name on the ring: 64 bits of BLAKE2b."""
    hashes = np.empty(len(names), np.uint64)
    if len(names):
        _blake2b_all(*_bytes_of(names), hashes)
    return hashes


def key_slots(names: pa.Array) -> Slots:
    """Return the slot of each name: CRC16 of the text in its first `{}`, or of the whole name if there is none."""
    slots = np.empty(len(names), np.int32)
    if len(names):
        _slots_all(*_bytes_of(names), slots)
    return slots


def _bytes_of(names: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return all names concatenated, and the start of each name and the end of the last."""
    wide = names.cast(pa.large_binary())
    _, offsets, data = wide.buffers()
    begins = np.frombuffer(offsets, np.int64)[wide.offset : wide.offset + len(wide) + 1]
    return np.frombuffer(data if data is not None else pa.py_buffer(b""), np.uint8), begins


@kernel
def _blake2b_all(data: npt.NDArray[np.uint8], begins: npt.NDArray[np.int64], out: Hashes) -> None:
    state = np.empty(8, np.uint64)
    words = np.empty(16, np.uint64)
    work = np.empty(16, np.uint64)
    for index in range(len(out)):
        at, end = begins[index], begins[index + 1]
        state[:] = _IV
        state[0] ^= np.uint64(_PARAMETERS)
        done = 0
        while True:
            size = min(_BLOCK, end - at - done)
            is_last = at + done + size == end
            words[:] = np.uint64(0)
            for offset in range(size):
                shift = np.uint64(8 * (offset & 7))
                words[offset >> 3] |= np.uint64(data[at + done + offset]) << shift
            done += size
            work[:8] = state
            work[8:] = _IV
            work[12] ^= np.uint64(done)
            if is_last:
                work[14] = ~work[14]
            for turn in range(_ROUNDS):
                sigma = _SIGMA[turn % 10]
                for lane in range(8):
                    a, b, c, d = _LANES[lane, 0], _LANES[lane, 1], _LANES[lane, 2], _LANES[lane, 3]
                    va = work[a] + work[b] + words[sigma[2 * lane]]
                    vd = work[d] ^ va
                    vd = (vd >> np.uint64(32)) | (vd << np.uint64(32))
                    vc = work[c] + vd
                    vb = work[b] ^ vc
                    vb = (vb >> np.uint64(24)) | (vb << np.uint64(40))
                    va = va + vb + words[sigma[2 * lane + 1]]
                    vd = vd ^ va
                    vd = (vd >> np.uint64(16)) | (vd << np.uint64(48))
                    vc = vc + vd
                    vb = vb ^ vc
                    work[a], work[c], work[d] = va, vc, vd
                    work[b] = (vb >> np.uint64(63)) | (vb << np.uint64(1))
            for word in range(8):
                state[word] ^= work[word] ^ work[word + 8]
            if is_last:
                break
        swapped = np.uint64(0)
        for byte in range(8):
            swapped = (swapped << np.uint64(8)) | ((state[0] >> np.uint64(8 * byte)) & np.uint64(0xFF))
        out[index] = swapped


@kernel
def _slots_all(data: npt.NDArray[np.uint8], begins: npt.NDArray[np.int64], out: Slots) -> None:
    table = np.empty(256, np.uint16)
    for value in range(256):
        crc = value << 8
        for _ in range(8):
            crc = ((crc << 1) ^ _CRC_POLYNOMIAL) if crc & 0x8000 else crc << 1
        table[value] = crc & 0xFFFF
    for index in range(len(out)):
        first, last = begins[index], begins[index + 1]
        for opened in range(first, last):
            if data[opened] == _OPEN:
                closed = opened + 1
                while closed < last and data[closed] != _CLOSE:
                    closed += 1
                if opened + 1 < closed < last:
                    first, last = opened + 1, closed
                break
        crc = 0
        for at in range(first, last):
            crc = ((crc << 8) & 0xFF00) ^ int(table[((crc >> 8) ^ data[at]) & 0xFF])
        out[index] = crc % SLOTS
