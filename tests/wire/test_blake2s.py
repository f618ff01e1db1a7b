"""The compiled BLAKE2s is hashlib's, for keys, labels and data of every length."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.wire.blake2s import BLOCK_BYTES, KEY_BYTES, hash_bytes, keyed_state, label_words, load_block
from shoal.wire.raw_bytes import Bytes, kernel, padded

LABEL = b"message"
_WORDS = label_words(LABEL)


@kernel
def digest(key: Bytes, data: Bytes, start: int, size: int, digest_bytes: int) -> Bytes:
    k = load_block(key, 0, KEY_BYTES)
    state = keyed_state((k[0], k[1], k[2], k[3], k[4], k[5], k[6], k[7]), _WORDS, digest_bytes)
    found = np.empty(8, np.uint32)
    for index, word in enumerate(hash_bytes(state, data, start, size)):
        found[index] = word
    return found.view(np.uint8)


@given(
    key=st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES),
    before=st.binary(max_size=9),
    data=st.binary(min_size=1, max_size=3 * BLOCK_BYTES) | st.binary(min_size=BLOCK_BYTES, max_size=BLOCK_BYTES),
    after=st.binary(max_size=9),
    digest_bytes=st.sampled_from([8, 16, 32]),
)
def test_it_is_the_hash_of_hashlib(key: bytes, before: bytes, data: bytes, after: bytes, digest_bytes: int) -> None:
    found = digest(padded(key), padded(before + data + after), len(before), len(data), digest_bytes)
    expected = hashlib.blake2s(data, key=key, person=LABEL, digest_size=digest_bytes).digest()
    assert found.tobytes()[:digest_bytes] == expected
