"""Keys, sealed packets and encrypted packets by an implementation that has nothing in common with netsum's.

AEGIS-128L is written from draft-irtf-cfrg-aegis-aead, SipHash-2-4 from its paper, `Nh` from ADR 0038, HKDF from RFC
5869. Each is checked by a published vector first, where there is one.
"""

import hmac
import json
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "vectors/sealed.json"
VECTORS = json.loads(FILE.read_text())
CODES = {"siphash": 0, "aegis": 1, "nh": 2, "aegis-aead": 3}
HEADER, NUMBERED, SEALED = 38, 46, 54
MASK = (1 << 64) - 1


def _multiply(a: int, b: int) -> int:
    """In the field of AES."""
    product = 0
    for bit in range(8):
        if b >> bit & 1:
            product ^= a << bit
    for bit in range(14, 7, -1):
        if product >> bit & 1:
            product ^= 0x11B << (bit - 8)
    return product


def _substitute(byte: int) -> int:
    inverse = next((b for b in range(256) if _multiply(byte, b) == 1), 0)
    turned = [inverse << n | inverse >> (8 - n) for n in range(5)]
    return (turned[0] ^ turned[1] ^ turned[2] ^ turned[3] ^ turned[4] ^ 0x63) & 0xFF


BOX = [_substitute(byte) for byte in range(256)]
TWICE = [_multiply(byte, 2) for byte in range(256)]


def xor(*parts: bytes) -> bytes:
    return bytes(a if len(rest) == 0 else a ^ _xor(rest) for a, *rest in zip(*parts, strict=True))


def _xor(values: list[int]) -> int:
    total = 0
    for value in values:
        total ^= value
    return total


def aes_round(block: bytes, key: bytes) -> bytes:
    shifted = [BOX[block[(4 * (column + row) + row) % 16]] for column in range(4) for row in range(4)]
    mixed = []
    for column in range(4):
        four = shifted[4 * column : 4 * column + 4]
        everything = four[0] ^ four[1] ^ four[2] ^ four[3]
        mixed += [four[row] ^ everything ^ TWICE[four[row] ^ four[(row + 1) % 4]] for row in range(4)]
    return xor(bytes(mixed), key)


class Aegis:
    C0 = bytes.fromhex("000101020305080d1522375990e97962")
    C1 = bytes.fromhex("db3d18556dc22ff12011314273b528dd")

    def __init__(self, key: bytes, nonce: bytes):
        once = xor(key, nonce)
        key_0, key_1 = xor(key, self.C0), xor(key, self.C1)
        self.state = [once, self.C1, self.C0, self.C1, once, key_0, key_1, key_0]
        for _ in range(10):
            self.update(nonce, key)

    def update(self, first: bytes, second: bytes) -> None:
        s = self.state
        self.state = [aes_round(s[i - 1], s[i]) for i in range(8)]
        self.state[0] = xor(self.state[0], first)
        self.state[4] = xor(self.state[4], second)

    def absorb(self, message: bytes) -> None:
        for at in range(0, len(message), 32):
            block = message[at : at + 32].ljust(32, b"\0")
            self.update(block[:16], block[16:])

    def encrypt(self, message: bytes) -> bytes:
        out = b""
        for at in range(0, len(message), 32):
            part = message[at : at + 32]
            block, s = part.ljust(32, b"\0"), self.state
            both = [bytes(a & b for a, b in zip(s[i], s[i + 1], strict=True)) for i in (2, 6)]
            stream = xor(s[6], s[1], both[0]) + xor(s[2], s[5], both[1])
            self.update(block[:16], block[16:])
            out += xor(block, stream)[: len(part)]
        return out

    def finish(self, first_bits: int, second_bits: int) -> bytes:
        sizes = first_bits.to_bytes(8, "little") + second_bits.to_bytes(8, "little")
        sizes = xor(self.state[2], sizes)
        for _ in range(7):
            self.update(sizes, sizes)
        return xor(*self.state[:7])


def siphash(key: bytes, message: bytes) -> int:
    k = [int.from_bytes(key[at : at + 8], "little") for at in (0, 8)]
    v = [k[i % 2] ^ word for i, word in enumerate((0x736F6D6570736575, 0x646F72616E646F6D))]
    v += [k[i % 2] ^ word for i, word in enumerate((0x6C7967656E657261, 0x7465646279746573))]

    def turn(value: int, by: int) -> int:
        return (value << by | value >> (64 - by)) & MASK

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = turn(v[1], 13) ^ v[0]
            v[0] = turn(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = turn(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = turn(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = turn(v[1], 17) ^ v[2]
            v[2] = turn(v[2], 32)

    padded = message.ljust(len(message) // 8 * 8 + 7, b"\0") + bytes([len(message) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def nh(key: bytes, numbered: bytes, payload: bytes, number: int) -> int:
    """Of a message of one part."""

    def word(i: int) -> int:
        return siphash(key, i.to_bytes(8, "little"))

    message = numbered + len(payload).to_bytes(2, "little") + payload
    message = message.ljust((len(message) + 15) // 16 * 16, b"\0")
    assert len(message) <= 96 * 16
    sums = [0, 0]
    for pair, at in enumerate(range(0, len(message), 16)):
        first, second = message[at : at + 8], message[at + 8 : at + 16]
        for turn, order in enumerate(("little", "big")):
            keys = [word(2 + 2 * (pair + turn) + i) for i in range(2)]
            values = [int.from_bytes(part, order) for part in (first, second)]
            product = ((values[0] + keys[0]) & MASK) * ((values[1] + keys[1]) & MASK)
            sums[turn] = (sums[turn] + product) & MASK
    last = b"".join(word(i).to_bytes(8, "little") for i in range(2))
    return siphash(last, b"".join(each.to_bytes(8, "little") for each in sums) + number.to_bytes(7, "little"))


def seal(mac: str, key: bytes, number: int, plain: bytes, header: int) -> bytes:
    version = plain[0] & 0xF0 | (3 if mac == "aegis-aead" else 2)
    numbered = bytes([version]) + plain[1:HEADER] + number.to_bytes(8, "big")
    payload = plain[header:]
    if mac == "aegis-aead":
        cipher = Aegis(key, number.to_bytes(8, "big") + bytes(8))
        cipher.absorb(numbered)
        encrypted = cipher.encrypt(payload)
        tag = cipher.finish(8 * NUMBERED, 8 * len(payload))
        return numbered + tag[:8] + encrypted + tag[8:]
    head = numbered.ljust(64, b"\0")
    if mac == "aegis":
        code = Aegis(key, bytes(16))
        code.absorb(head + payload)
        tag = code.finish(8 * (64 + len(payload)), 128)[:8]
    elif mac == "siphash":
        tag = siphash(key, head + payload).to_bytes(8, "big")
    else:
        tag = nh(key, numbered, payload, number).to_bytes(8, "big")
    return numbered + tag + payload


def derive(key: bytes, info: bytes, length: int, salt: bytes = bytes(32)) -> bytes:
    """HKDF with SHA-256; no salt is 32 zeros."""
    pseudorandom = hmac.digest(salt, key, "sha256")
    out = block = b""
    while len(out) < length:
        block = hmac.digest(pseudorandom, block + info + bytes([len(out) // 32 + 1]), "sha256")
        out += block
    return out[:length]


def test_published_vectors():
    state = bytes(range(16))
    key = bytes.fromhex("101112131415161718191a1b1c1d1e1f")
    assert aes_round(state, key).hex() == "7a7b4e5638782546a8c0477a3b813f43", "draft-irtf-cfrg-aegis-aead, A.1"
    cipher = Aegis(bytes.fromhex("1001" + "00" * 14), bytes.fromhex("100002" + "00" * 13))
    assert cipher.encrypt(bytes(16)).hex() == "c1c0e58bd913006feba00f4b3cc3594e", "the same, A.2.2"
    assert cipher.finish(0, 128).hex() == "abe0ece80c24868a226a35d16bdae37a"
    assert siphash(bytes(range(16)), bytes(range(15))) == 0xA129CA6149BE45E5, "SipHash, appendix A"
    material = derive(b"\x0b" * 22, bytes(range(0xF0, 0xFA)), 42, bytes(range(13)))
    assert material.hex().startswith("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"), (
        "RFC 5869, A.1"
    )


@pytest.mark.parametrize("case", VECTORS["hops"], ids=lambda case: f"{case['mac']}-{case.get('rank', 'switch')}")
def test_keys_of_hops(case):
    code = bytes([CODES[case["mac"]]])
    place = VECTORS["epoch"].to_bytes(2, "big") + bytes([VECTORS["tree"]])
    key = bytes.fromhex(VECTORS["job_key"])
    if "rank" in case:
        rank = derive(key, b"netsum 1 rank " + case["rank"].to_bytes(4, "big") + code, 16)
        keys = derive(rank, b"netsum 1 hop " + place + code, 32)
    else:
        keys = derive(key, b"netsum 1 switch " + place + case["switch"].encode() + code, 32)
    assert (keys[:16].hex(), keys[16:].hex()) == (case["up"], case["down"])


@pytest.mark.parametrize("mac", CODES)
def test_packets_are_sealed_alike(mac):
    cases = [case for case in VECTORS["packets"] if case["mac"] == mac]
    assert {case["protocol"] for case in cases} == {"panama", "atp", "switchml"}
    for case in cases:
        plain, sealed = bytes.fromhex(case["unsealed"]), bytes.fromhex(case["sealed"])
        trailer = 8 if mac == "aegis-aead" else 0
        header = len(plain) - (len(sealed) - SEALED - trailer)
        assert seal(mac, bytes.fromhex(case["key"]), case["number"], plain, header) == sealed, case


def test_every_kind_of_refusal_is_there():
    kinds = {mac: {case["why"] for case in VECTORS["refused"] if case["mac"] == mac} for mac in CODES}
    assert all(whys == kinds["aegis"] and len(whys) == 10 for whys in kinds.values()), kinds
