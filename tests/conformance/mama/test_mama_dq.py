"""Numbered publishers (PE-37), as OpenMAMA numbers them."""

from __future__ import annotations

import threading
import time

import pytest
from mama_spark.mama import DQPublisher, MamaMsg, MsgStatus, MsgType, Queue, Status, StatusError
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.omnm import decode
from mama_spark.testing.waiting import until

from tests.support.mama.mama_harness import CallbackRecorder, MamaHarness, MemoryMamaHarness, a_message


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
        ("MdMsgStatus", 2, "U8", 0),
        ("MdSeqNum", 10, "U32", 2),
        ("MamaSenderId", 20, "U64", dq.sender_id),
    ]
    assert sent(memory) == [msg]
    other = DQPublisher.create(memory.transport(), memory.symbol, memory.source)
    assert other.sender_id != dq.sender_id
    assert dq.sender_id < 2**64


@pytest.mark.parametrize("kind", ["INITIAL", "BOOK_INITIAL", "RECAP", "BOOK_RECAP"])
def test_what_repeats_is_not_counted(memory: MemoryMamaHarness, kind: str) -> None:
    dq = DQPublisher.create(memory.transport(), memory.symbol, memory.source)
    dq.set_status(MsgStatus.STALE)
    for k in (None, MsgType[kind], None):
        dq.send(of_type(k))
    assert [(m.get("MdSeqNum"), m.get("MdMsgStatus")) for m in sent(memory)] == [(2, 7), (2, 7), (3, 7)]


@pytest.mark.parametrize("kind", ["REFRESH", "SYNC_REQUEST", "MISC", "NOT_PERMISSIONED", "NOT_FOUND"])
def test_what_is_no_data_carries_the_number_as_it_is_and_no_status(memory: MemoryMamaHarness, kind: str) -> None:
    dq = DQPublisher.create(memory.transport(), memory.symbol, memory.source)
    for k in (MsgType.QUOTE, MsgType[kind], MsgType.TRADE):
        dq.send(of_type(k))
    assert [(m.get("MdSeqNum"), m.get("MdMsgStatus")) for m in sent(memory)] == [(2, 0), (2, None), (3, 0)]


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
        with pytest.raises(StatusError) as error:
            call(value)
        assert error.value.status is Status.INVALID_ARG


def test_a_message_that_was_not_sent_takes_no_number(memory: MemoryMamaHarness) -> None:
    dq = DQPublisher.create(memory.transport(call_timeout=0.05), memory.symbol, memory.source)
    memory.broker.up = False
    with pytest.raises(StatusError, match="TIMEOUT"):
        dq.send(of_type(None))
    memory.broker.up = True
    with pytest.raises(StatusError, match="NULL_ARG"):
        dq.send(None)
    dq.send(of_type(None))
    assert [m.get("MdSeqNum") for m in sent(memory)] == [2]


def test_numbers_leave_in_order_whoever_sends(memory: MemoryMamaHarness) -> None:
    dq = DQPublisher.create(memory.transport(), memory.symbol, memory.source)

    def many() -> None:
        for _ in range(50):
            dq.send(of_type(None))

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: len(memory.held()) == 200)
    assert [m.get("MdSeqNum") for m in sent(memory)] == list(range(2, 202))
