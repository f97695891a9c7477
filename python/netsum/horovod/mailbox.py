"""Messages of any length between rank 0 and the others, over a communicator's point-to-point messages."""

import struct

from netsum.communicator import Communicator

_FRAME = 512
"""Bytes of the first message: a length, and as much of the payload as fits. Most messages need no second one."""
_INLINE = _FRAME - 8
_HEAD_TAG, _REST_TAG = 0x6E73_0001, 0x6E73_0002
_NEVER_S = 10 * 365 * 86_400.0


def send(world: Communicator, to: int, message: bytes) -> None:
    """Send without waiting; messages to one rank keep their order."""
    world.send(struct.pack("<Q", len(message)) + message[:_INLINE].ljust(_INLINE, b"\0"), to, _HEAD_TAG, wait=False)
    if len(message) > _INLINE:
        world.send(message[_INLINE:], to, _REST_TAG, wait=False)


def receive(world: Communicator, source: int | None) -> tuple[int, bytes]:
    """(rank, message) of the next message from `source`, or from any rank; waits as long as the group is open."""
    head = bytearray(_FRAME)
    work = world.core.recv(*_span(head), source, _HEAD_TAG, _NEVER_S)
    work.wait(None)
    rank = work.source_rank()
    assert rank is not None, "a receive that ended well has a sender"
    (length,) = struct.unpack_from("<Q", head)
    message = bytes(head[8 : 8 + min(length, _INLINE)])
    if length > _INLINE:
        rest = bytearray(length - _INLINE)
        world.core.recv(*_span(rest), rank, _REST_TAG, _NEVER_S).wait(None)
        message += bytes(rest)
    return rank, message


def _span(memory: bytearray) -> tuple[int, int]:
    from netsum.communicator import memory as of

    return of(memory, "receive").span
