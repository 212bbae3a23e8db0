"""What is received into the buffer is there as it came, and what somebody has of it does not change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mama_spark.nats.protocol.receive_buffer import ReceiveBuffer

from tests.support.tiers import examples

SIZES = st.sampled_from([1, 100, 70_000, 300_000, 1_100_000])


def receive(buffer: ReceiveBuffer, data: bytes) -> None:
    """As a socket does."""
    while data:
        space = buffer.free_space()
        assert len(space) >= 64 * 1024
        n = min(len(space), len(data))
        space[:n] = data[:n]
        buffer.end, data = buffer.end + n, data[n:]


@examples(60)
@given(st.lists(st.tuples(st.sampled_from(["receive", "append", "take", "share", "drop"]), SIZES), max_size=30))
def test_all_octets_come_in_order_and_shared_ones_stay(steps: list[tuple[str, int]]) -> None:
    buffer, came, taken = ReceiveBuffer(), bytearray(b"begin"), 0
    buffer.start(memoryview(b"begin"), 0)
    shared: list[tuple[memoryview, bytes]] = []
    for number, (step, size) in enumerate(steps):
        size = size if step in ("receive", "append") else min(size, len(buffer))
        if step in ("receive", "append"):
            data = bytes([number]) * size
            receive(buffer, data) if step == "receive" else buffer.append(data)
            came += data
        elif step == "drop":
            del shared[: len(shared) // 2]
        else:
            if step == "share":
                part = buffer.share(buffer.begin, buffer.begin + size)
                shared.append((part, bytes(came[taken : taken + size])))
            buffer.begin, taken = buffer.begin + size, taken + size
        assert buffer.data[buffer.begin : buffer.end] == came[taken:]
        assert all(part == wanted for part, wanted in shared)
    assert buffer.stop() == came[taken:]
    buffer.start(memoryview(b"anew"), 0)
    receive(buffer, bytes(2_000_000))
    assert all(part == wanted for part, wanted in shared), "not even after the buffer was given up"


def test_nothing_is_allocated_by_what_is_only_needed() -> None:
    buffer = ReceiveBuffer()
    buffer.start(memoryview(b"x"), 64 << 20)
    receive(buffer, bytes(100_000))
    assert len(buffer.data) < 3 << 20


def test_memory_that_nobody_has_any_more_is_used_again() -> None:
    buffer, blocks, shared = ReceiveBuffer(), dict[int, bytearray](), list[memoryview]()
    buffer.start(memoryview(b""), 0)
    for _ in range(100):
        receive(buffer, bytes(300_000))
        shared.append(buffer.share(buffer.begin, buffer.end))
        buffer.begin = buffer.end
        del shared[:-5]
        blocks[id(buffer.data)] = buffer.data  # kept, so that no other has its address
    assert len(blocks) < 6, "of 30 megabytes"


def test_what_is_parsed_at_once_takes_one_block() -> None:
    buffer = ReceiveBuffer()
    buffer.start(memoryview(b""), 0)
    receive(buffer, b"x")
    block = buffer.data
    for _ in range(50):
        receive(buffer, bytes(100_000))
        buffer.begin = buffer.end
    assert buffer.data is block


def test_a_message_that_does_not_fit_behind_the_last_one_moves_while_little_of_it_is_there() -> None:
    buffer = ReceiveBuffer()
    buffer.start(memoryview(b""), 0)
    receive(buffer, bytes(600_000))
    held = buffer.share(buffer.begin, buffer.end)
    buffer.begin, first = buffer.end, buffer.data
    receive(buffer, b"head")
    buffer.needed = 500_000
    assert len(buffer.free_space()) >= 500_000 - 4
    assert buffer.data is not first
    assert bytes(buffer.data[buffer.begin : buffer.end]) == b"head"
    assert held == bytes(600_000)
