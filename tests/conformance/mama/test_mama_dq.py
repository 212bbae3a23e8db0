"""Numbered publishers (PE-37), as OpenMAMA numbers them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from mama_spark.mama import DQPublisher, MamaMsg, MsgStatus, MsgType, Queue, Status
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.omnm import decode
from mama_spark.testing.waiting import until

from tests.support.mama.mama_harness import CallbackRecorder, MamaHarness, MemoryMamaHarness, a_message, fails


def of_type(kind: MsgType | None) -> MamaMsg:
    msg = MamaMsg()
    if kind is not None:
        msg.add(FieldType.I32, "MdMsgType", 1, int(kind))
    return msg


def sent(memory: MemoryMamaHarness) -> list[MamaMsg]:
    return [decode(m.payload) for m in memory.held()]


@pytest.mark.spec("PE-37")
def test_the_callbacks_are_there_too(harness: MamaHarness) -> None:
    recorder, queue = CallbackRecorder(), Queue()
    dq = DQPublisher.create_with_callbacks(
        harness.transport(), queue, harness.symbol, harness.source, None, recorder.callbacks(), "mine"
    )
    for i in range(5):
        dq.send(a_message(i))
    dq.destroy()
    assert recorder.counters == (1, 0, 5 if harness.publisher_style else 0, 1)
    assert set(recorder.closures) == {"mine"}
    assert [decode(m.payload).get("MdSeqNum") for m in harness.held()] == [2, 3, 4, 5, 6]
    assert dq.state.name == "DESTROYED"


def test_the_first_update_carries_two_with_status_and_sender(memory: MemoryMamaHarness) -> None:
    dq = DQPublisher.create(memory.transport(), memory.symbol, memory.source)
    assert (dq.seq_num, dq.status) == (1, MsgStatus.OK)
    msg = of_type(None)
    dq.send(msg)
    assert [(f.name, f.fid, f.type.name, f.value) for f in msg] == [
        ("MdMsgStatus", 2, "U8", 0), ("MdSeqNum", 10, "U32", 2), ("MamaSenderId", 20, "U64", dq.sender_id)
    ]  # fmt: skip
    assert sent(memory) == [msg]
    other = DQPublisher.create(memory.transport(), memory.symbol, memory.source)
    assert other.sender_id != dq.sender_id
    assert dq.sender_id < 2**64


def test_what_repeats_is_not_counted_and_what_is_no_data_has_no_status_either(memory: MemoryMamaHarness) -> None:
    dq = DQPublisher.create(memory.transport(), memory.symbol, memory.source)
    dq.set_status(MsgStatus.STALE)
    repeats = ("INITIAL", "BOOK_INITIAL", "RECAP", "BOOK_RECAP")
    no_data = ("REFRESH", "SYNC_REQUEST", "MISC", "NOT_PERMISSIONED", "NOT_FOUND")
    for kind in ("QUOTE", *repeats, "TRADE", *no_data):
        dq.send(of_type(MsgType[kind]))
    dq.send(of_type(None))
    assert [(m.get("MdSeqNum"), m.get("MdMsgStatus")) for m in sent(memory)] == [
        *[(2, 7)] * 5, (3, 7), *[(3, None)] * 5, (4, 7)
    ]  # fmt: skip


def test_number_zero_stamps_neither_number_nor_status(memory: MemoryMamaHarness) -> None:
    dq = DQPublisher.create(memory.transport(), memory.symbol, memory.source)
    dq.set_seq_num(0)
    dq.send(of_type(None))
    dq.send(of_type(MsgType.RECAP))
    assert [[f.name for f in m] for m in sent(memory)] == [["MamaSenderId"], ["MdMsgType", "MamaSenderId"]]
    dq.set_sender_id(0)
    dq.send(of_type(None))
    assert len(sent(memory)[2]) == 0
    dq.set_seq_num(0xFFFF_FFFE)
    for _ in range(2):
        dq.send(of_type(None))
    assert [m.get("MdSeqNum") for m in sent(memory)][3:] == [0xFFFF_FFFF, 1], "around without becoming 0"


def test_sender_number_and_time_can_be_set(memory: MemoryMamaHarness) -> None:
    dq = DQPublisher.create(memory.transport(), memory.symbol, memory.source)
    dq.set_sender_id(2**64 - 1)
    dq.set_seq_num(41)
    dq.enable_send_time(True)
    before = time.time_ns() // 1000
    dq.send(of_type(None))
    (msg,) = sent(memory)
    assert (msg.get("MamaSenderId"), msg.get("MdSeqNum")) == (2**64 - 1, 42)
    assert before <= msg.get("MamaSendTime").us <= time.time_ns() // 1000
    for call, value in ((dq.set_sender_id, 2**64), (dq.set_seq_num, -1), (dq.set_seq_num, 2**32)):
        fails(Status.INVALID_ARG, call, value)


def test_a_message_that_was_not_sent_takes_no_number(memory: MemoryMamaHarness) -> None:
    dq = DQPublisher.create(memory.transport(call_timeout=0.05), memory.symbol, memory.source)
    memory.broker.up = False
    fails(Status.TIMEOUT, dq.send, of_type(None))
    memory.broker.up = True
    fails(Status.NULL_ARG, dq.send, None)
    dq.send(of_type(None))
    assert [m.get("MdSeqNum") for m in sent(memory)] == [2]


def test_numbers_leave_in_order_whoever_sends(memory: MemoryMamaHarness) -> None:
    dq = DQPublisher.create(memory.transport(), memory.symbol, memory.source)

    def many() -> None:
        for _ in range(50):
            dq.send(of_type(None))

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(many)
    until(lambda: len(memory.held()) == 200)
    assert [m.get("MdSeqNum") for m in sent(memory)] == list(range(2, 202))
