"""BLAKE2s (RFC 7693) for compiled loops: hashes of bytes that never become Python objects.

Owns the compression function, and the hash with a label, keyed and not. The same function as `hashlib.blake2s`, with
which the tests compare it. It does not depend on channels and touches no socket. Words of 32 bits are kept in 64-bit
registers where numba would widen them anyway; LLVM narrows them again. Where the loops run as Python (`loop_source`),
the compression works on plain integers.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np

from shoal.wire.loop_source import Bytes, kernel, load_u64, part, part_from, tail_mask

Word: TypeAlias = np.uint32
State: TypeAlias = tuple[Word, Word, Word, Word, Word, Word, Word, Word]
Block: TypeAlias = tuple[
    Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word
]  # fmt: skip

BLOCK_BYTES: Final = 64
KEY_BYTES: Final = 32
_FULL: Final = np.uint32(0xFFFFFFFF)
_NONE: Final = np.uint32(0)
_HALF: Final = np.uint64(32)
_I0, _I1, _I2, _I3, _I4, _I5, _I6, _I7 = (
    np.uint32(word)
    for word in (
        *(0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A),
        *(0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19),
    )
)
_PLAIN: Final = np.uint32(1 << 24 | 1 << 16)
_KEYED: Final = np.uint32(_PLAIN | KEY_BYTES << 8)
"""The first word of the parameters without the size of the digest: one leaf, without a key and with one."""


def label_words(label: bytes) -> tuple[np.uint32, np.uint32]:
    """A label of at most 8 bytes (`person` in hashlib) as two words."""
    first, second = np.frombuffer(label.ljust(8, b"\0"), np.uint32)
    return first, second


@part
def mix(a: Word, b: Word, c: Word, d: Word, x: Word, y: Word) -> tuple[Word, Word, Word, Word]:
    """The function G."""
    a = np.uint32(a + b + x)
    d ^= a
    d = np.uint32((d >> np.uint32(16)) | (d << np.uint32(16)))
    c = np.uint32(c + d)
    b ^= c
    b = np.uint32((b >> np.uint32(12)) | (b << np.uint32(20)))
    a = np.uint32(a + b + y)
    d ^= a
    d = np.uint32((d >> np.uint32(8)) | (d << np.uint32(24)))
    c = np.uint32(c + d)
    b ^= c
    b = np.uint32((b >> np.uint32(7)) | (b << np.uint32(25)))
    return a, b, c, d


@part
def one_round(v: Block, m: Block) -> Block:
    """One round; `m` has the words of the block in the order of this round."""
    v0, v4, v8, v12 = mix(v[0], v[4], v[8], v[12], m[0], m[1])
    v1, v5, v9, v13 = mix(v[1], v[5], v[9], v[13], m[2], m[3])
    v2, v6, v10, v14 = mix(v[2], v[6], v[10], v[14], m[4], m[5])
    v3, v7, v11, v15 = mix(v[3], v[7], v[11], v[15], m[6], m[7])
    v0, v5, v10, v15 = mix(v0, v5, v10, v15, m[8], m[9])
    v1, v6, v11, v12 = mix(v1, v6, v11, v12, m[10], m[11])
    v2, v7, v8, v13 = mix(v2, v7, v8, v13, m[12], m[13])
    v3, v4, v9, v14 = mix(v3, v4, v9, v14, m[14], m[15])
    return v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15


_ORDERS: Final = tuple(
    tuple(int(digit, 16) for digit in row)
    for row in (
        *("0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "905724afe1bc683d"),
        *("2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0"),
    )
)
_LANES: Final = (
    *((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)),
    *((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)),
)


def compress_words(h: State, m: Block, hashed: int, last: bool) -> State:
    """`compress`, compiled. Each line is a round with its order of words."""
    m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, ma, mb, mc, md, me, mf = m
    end = np.uint32(_I6 ^ _FULL) if last else _I6
    low = np.uint32(_I4 ^ np.uint32(hashed))
    v: Block = (h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7], _I0, _I1, _I2, _I3, low, _I5, end, _I7)
    v = one_round(v, (m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, ma, mb, mc, md, me, mf))
    v = one_round(v, (me, ma, m4, m8, m9, mf, md, m6, m1, mc, m0, m2, mb, m7, m5, m3))
    v = one_round(v, (mb, m8, mc, m0, m5, m2, mf, md, ma, me, m3, m6, m7, m1, m9, m4))
    v = one_round(v, (m7, m9, m3, m1, md, mc, mb, me, m2, m6, m5, ma, m4, m0, mf, m8))
    v = one_round(v, (m9, m0, m5, m7, m2, m4, ma, mf, me, m1, mb, mc, m6, m8, m3, md))
    v = one_round(v, (m2, mc, m6, ma, m0, mb, m8, m3, m4, md, m7, m5, mf, me, m1, m9))
    v = one_round(v, (mc, m5, m1, mf, me, md, m4, ma, m0, m7, m6, m3, m9, m2, m8, mb))
    v = one_round(v, (md, mb, m7, me, mc, m1, m3, m9, m5, m0, mf, m4, m8, m6, m2, ma))
    v = one_round(v, (m6, mf, me, m9, mb, m3, m0, m8, mc, m2, md, m7, m1, m4, ma, m5))
    v = one_round(v, (ma, m2, m8, m4, m7, m6, m1, m5, mf, mb, m9, me, m3, mc, md, m0))
    return (
        np.uint32(h[0] ^ v[0] ^ v[8]),
        np.uint32(h[1] ^ v[1] ^ v[9]),
        np.uint32(h[2] ^ v[2] ^ v[10]),
        np.uint32(h[3] ^ v[3] ^ v[11]),
        np.uint32(h[4] ^ v[4] ^ v[12]),
        np.uint32(h[5] ^ v[5] ^ v[13]),
        np.uint32(h[6] ^ v[6] ^ v[14]),
        np.uint32(h[7] ^ v[7] ^ v[15]),
    )


@part_from(compress_words)
def compress(h: State, m: Block, hashed: int, last: bool) -> State:
    """Takes one block; `hashed` is the number of bytes up to its end."""
    words, full = [int(word) for word in m], 0xFFFFFFFF
    before = [int(word) for word in h]
    v = before + [int(word) for word in (_I0, _I1, _I2, _I3, _I4, _I5, _I6, _I7)]
    v[12] ^= int(hashed) & full
    v[14] ^= full if last else 0
    for order in _ORDERS:
        at = iter(order)
        for a, b, c, d in _LANES:
            for left, right in ((16, 12), (8, 7)):
                v[a] = (v[a] + v[b] + words[next(at)]) & full
                turned = v[d] ^ v[a]
                v[d] = (turned >> left | turned << (32 - left)) & full
                v[c] = (v[c] + v[d]) & full
                turned = v[b] ^ v[c]
                v[b] = (turned >> right | turned << (32 - right)) & full
    first, second, third, fourth, fifth, sixth, seventh, eighth = (
        np.uint32(before[word] ^ v[word] ^ v[word + 8]) for word in range(8)
    )
    return first, second, third, fourth, fifth, sixth, seventh, eighth


@kernel
def take_block(h: State, m: Block, hashed: int, last: bool) -> State:
    """The same as a function of its own: inlined everywhere, the compression would take a minute to compile."""
    return compress(h, m, hashed, last)


@part
def plain_state(label: tuple[Word, Word], digest_bytes: int) -> State:
    """The state in which a hash without a key begins."""
    first = np.uint32(_I0 ^ _PLAIN ^ np.uint32(digest_bytes))
    return first, _I1, _I2, _I3, _I4, _I5, np.uint32(_I6 ^ label[0]), np.uint32(_I7 ^ label[1])


@kernel
def keyed_state(key: State, label: tuple[Word, Word], digest_bytes: int) -> State:
    """The state after the block of a key: where the hash of some data begins. There must be some data."""
    first = np.uint32(_I0 ^ _KEYED ^ np.uint32(digest_bytes))
    h = first, _I1, _I2, _I3, _I4, _I5, np.uint32(_I6 ^ label[0]), np.uint32(_I7 ^ label[1])
    z = _NONE
    block = key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7], z, z, z, z, z, z, z, z
    return take_block(h, block, BLOCK_BYTES, False)


@part
def load_words(data: Bytes, at: int, end: int) -> tuple[Word, Word]:
    """The 8 bytes at an index as two words; bytes from `end` on are zero."""
    left = end - at
    if left <= 0:
        return _NONE, _NONE
    word = load_u64(data, at)
    if left < 8:
        word &= tail_mask(left)
    return np.uint32(word), np.uint32(word >> _HALF)


@part
def load_block(data: Bytes, at: int, end: int) -> Block:
    """The block at an index; bytes from `end` on are zero."""
    m0, m1 = load_words(data, at, end)
    m2, m3 = load_words(data, at + 8, end)
    m4, m5 = load_words(data, at + 16, end)
    m6, m7 = load_words(data, at + 24, end)
    m8, m9 = load_words(data, at + 32, end)
    ma, mb = load_words(data, at + 40, end)
    mc, md = load_words(data, at + 48, end)
    me, mf = load_words(data, at + 56, end)
    return m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, ma, mb, mc, md, me, mf


@kernel
def hash_bytes(state: State, data: Bytes, start: int, size: int) -> State:
    """The digest, as words, of `size` (at least 1) bytes that follow the block of a key."""
    end = start + size
    at = start
    while at + BLOCK_BYTES < end:
        state = take_block(state, load_block(data, at, end), BLOCK_BYTES + at - start + BLOCK_BYTES, False)
        at += BLOCK_BYTES
    return take_block(state, load_block(data, at, end), BLOCK_BYTES + size, True)
