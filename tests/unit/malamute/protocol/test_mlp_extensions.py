"""Extensions of commands, and the answers that they carry; blocks of messages."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.message import MessageBatch
from mama_spark.malamute.bridge import frames as fr
from mama_spark.malamute.broker.engines.commands import AcceptBlock, AcceptMessage
from mama_spark.malamute.broker.session.state_machine import ServerMachine
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol import message_blocks
from mama_spark.malamute.protocol.commands import BadFrame, encode
from mama_spark.malamute.protocol.extensions import (
    ALL,
    NO_EXTENSION,
    AckRun,
    Extension,
    Feature,
    StoreOutcome,
    read,
    write,
)

from tests.support.malamute import client_machine
from tests.support.malamute.session_machine import server
from tests.support.tables import each
from tests.support.tiers import examples

# --- extensions in trailing bytes: decoded by our peers, harmless to others -------------------------------------------

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
EXTENSIONS = st.builds(
    Extension,
    features=st.none() | st.integers(0, int(ALL)).map(Feature),
    credit=st.none() | U32,
    sequence=st.none() | U64,
    time=st.none() | U64,
    after=st.none() | U64,
    acks=st.lists(st.builds(AckRun, st.sampled_from(StoreOutcome), U32, U64), max_size=4).map(tuple),
    message_id=st.binary(max_size=40),
    headers=st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=4).map(tuple),
    question=st.binary(max_size=40),
    answer=st.binary(max_size=40),
)
FULL = Extension(
    Feature.CREDIT | Feature.ACKS,
    7,
    2**40,
    1_700_000_000_000_000,
    3,
    (AckRun(StoreOutcome.STORED, 3, 10), AckRun(StoreOutcome.REFUSED, 1)),
    b"id-1",
    ((b"a", b"1"), (b"a", b""), (b"", b"2")),
)


def test_the_layout_of_version_1_is_fixed() -> None:
    assert write(Extension(sequence=258)).hex() == "4d5301" + "03" + "0008" + "0000000000000102"
    assert write(Extension(features=Feature.CONFIRM)).hex() == "4d5301" + "01" + "0004" + "00000008"
    assert write(Extension(headers=((b"k", b"v"),))).hex() == "4d5301" + "08" + "0004" + "0001" + "6b" + "76"
    assert write(Extension(acks=(AckRun(StoreOutcome.STORED, 2, 5),))).hex() == (
        "4d5301" + "06" + "000d" + "01" + "00000002" + "0000000000000005"
    )


@given(EXTENSIONS)
def test_any_extension_survives_the_wire(extension: Extension) -> None:
    assert read(write(extension)) == extension


def test_nothing_is_nothing() -> None:
    assert write(NO_EXTENSION) == b""
    assert read(b"") == NO_EXTENSION
    assert Extension(sequence=0) != NO_EXTENSION


@examples(500)
@given(st.binary(max_size=80), st.booleans())
def test_unreadable_bytes_say_nothing_and_raise_nothing(raw: bytes, ours: bool) -> None:
    extension = read((b"MS\x01" if ours else b"") + raw)
    if not ours and not raw.startswith(b"MS\x01"):
        assert extension == NO_EXTENSION


def test_a_block_cut_anywhere_is_ignored_or_a_whole_shorter_one() -> None:
    """A prefix may end between two fields; the fields in it are equal to those of the whole block."""
    block = write(FULL)
    for size in range(len(block)):
        short = read(block[:size])
        for name in ("features", "credit", "sequence", "time", "after"):
            assert getattr(short, name) in (None, getattr(FULL, name))
        assert short.acks in ((), FULL.acks)
        assert FULL.headers[: len(short.headers)] == short.headers


def test_unknown_fields_and_wrong_sizes_are_skipped_alone_and_another_version_whole() -> None:
    known = write(Extension(credit=5))
    assert read(b"MS\x02" + known[3:]) == NO_EXTENSION
    assert read(known + b"\x63\0\x02zz") == Extension(credit=5)
    assert read(known + b"\x03\0\x01z") == Extension(credit=5)
    assert read(known + b"\x06\0\x02zz" + b"\x08\0\x01z" + b"\x08\0\x02\xff\xff") == Extension(credit=5)
    assert read(known + b"\x06\0\x0d" + b"\x63" + b"\0" * 12) == Extension(credit=5), "an outcome of a later version"
    assert read(b"MS\x01\x01\0\x04\xff\xff\xff\xff").features == Feature(sum(Feature)), "features of a later version"


def test_what_does_not_fit_is_not_written() -> None:
    for bad in (
        Extension(credit=2**32),
        Extension(sequence=-1),
        Extension(message_id=b"x" * 65536),
        Extension(headers=((b"k", b"v" * 65536),)),
        Extension(acks=(AckRun(StoreOutcome.STORED, 2**32),)),
    ):
        with pytest.raises(BadFrame):
            write(bad)


def test_more_runs_than_a_field_holds_go_into_several() -> None:
    many = Extension(acks=tuple(AckRun(StoreOutcome.STORED, 1, 2 * n) for n in range(1, 20_000)))
    assert read(write(many)) == many


# --- Message blocks: the broker handles a block like its messages one by one ------------------------------------------

OURS = Feature.BLOCKS | Feature.ACKS | Feature.HEADERS | Feature.SENDING
names = st.text("abcXYZ-_", min_size=1, max_size=5)
values = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n\0"), max_size=300)
headers = st.none() | st.dictionaries(names, st.lists(values, max_size=2), max_size=2)
message = st.tuples(st.sampled_from(["a", "b.c", "ü"]), st.binary(max_size=300), headers, values)


def writing(features: Feature = OURS, **values: Any) -> ServerMachine:
    """A machine with a client that writes to an open stream."""
    machine = server(**values)
    machine.receive(b"w", encode(wire.Open(b"w", write(Extension(features=features)))), 0.0)
    machine.receive(b"w", encode(wire.StreamWrite(b"st")), 0.0)
    machine.opened(b"st", stored=True)
    machine.command_done(b"st")
    machine.command_done(b"st")
    machine.streams.take_commands()
    machine.clients.take_output()
    return machine


@examples(60)
@given(st.lists(message, min_size=1, max_size=8), st.booleans(), st.booleans(), st.integers(0, 3))
def test_a_block_leads_to_what_its_messages_lead_to_one_by_one(
    rows: list[tuple[Any, ...]], with_headers: bool, with_ids: bool, cut: int
) -> None:
    cut = min(cut, len(rows) - 1)
    topics, payloads, pairs, ids = map(list, zip(*rows, strict=True))
    batch = MessageBatch.of(topics, payloads, pairs if with_headers else None, ids if with_ids else None)
    batch = batch.slice(cut, len(rows) - cut)
    one_by_one, together = writing(), writing()
    for frames in fr.frames(batch):
        one_by_one.receive(b"w", list(frames), 1.0)
    together.receive(b"w", fr.block(batch), 1.0)
    single = [
        (one.subject, list(one.content), one.extension)
        for one in one_by_one.streams.take_commands()[b"st"]
        if isinstance(one, AcceptMessage)
    ]
    (order,) = together.streams.take_commands()[b"st"]
    assert isinstance(order, AcceptBlock)
    assert (order.client, order.address) == (together.clients.by_identity[b"w"], b"w")
    assert [(subject, list(content), more) for subject, content, more in order.block.messages()] == single
    assert len(single) == len(batch)
    assert [machine.clients.by_identity[b"w"].unsynced_sends for machine in (one_by_one, together)] == [
        {b"st": len(batch)}
    ] * 2
    assert together.publishing.unpacked == len(batch) - 1


def test_both_sides_count_the_same_bytes_for_a_block() -> None:
    """Otherwise the client would wait forever, or send more than its window allows."""
    batch = MessageBatch.of(["a"] * 50, [b"x" * 100] * 50, ids=[str(n) for n in range(50)])
    broker, client = server(), client_machine.client("w", OURS)

    def exchange() -> None:
        for frames in client.out:
            broker.receive(b"w", list(frames), 0.0)
        client.out.clear()
        for _, frames in broker.clients.take_output():
            client.receive(frames, 0.0)

    client.connect(0.0, 10.0)
    exchange()
    client.call(wire.StreamWrite(b"st"), 10.0)
    exchange()
    broker.opened(b"st")
    broker.command_done(b"st")
    broker.command_done(b"st")
    exchange()
    assert Feature.BLOCKS in client.features
    before = client.send_window.left
    client.send_frames([fr.block(batch)], len(batch))
    exchange()
    allowance = broker.clients.by_identity[b"w"].send_window
    assert allowance is not None
    assert before is not None
    assert client.send_window.left == allowance.left
    assert allowance.unanswered == before - allowance.left > 50 * 100


@pytest.mark.parametrize("state", ["opening", "full"])
def test_a_block_to_a_stream_that_takes_nothing_is_refused_like_messages(state: str) -> None:
    batch = MessageBatch.of(["a"] * 50, [b"x" * 100] * 50)
    ends = []
    for frames in (fr.block(batch), None):
        machine = writing(queue=1000) if state == "opening" else writing()
        if state == "opening":
            machine.receive(b"w", encode(wire.StreamWrite(b"new")), 0.0)
        else:
            machine.streams.full.add(b"st")
        machine.streams.take_commands()
        for one in [frames] if frames else [list(single) for single in fr.frames(batch)]:
            machine.receive(b"w", one, 1.0)
            if b"w" not in machine.clients.by_identity:
                break
        orders = machine.streams.take_commands().values()
        accepted = sum(isinstance(order, AcceptMessage) for commands in orders for order in commands)
        ends.append((b"w" in machine.clients.by_identity, accepted, [out for _, out in machine.clients.take_output()]))
    assert ends[0] == ends[1]
    assert not ends[0][0], "it is dropped, so that it cannot take what is lost for accepted"


def _block(count: int, lengths: list[int], commands: bytes, contents: bytes) -> list[bytes]:
    return message_blocks.pack(count, struct.pack(f">{len(lengths)}I", *lengths), commands, contents)


SEND = encode(wire.StreamSend(b"s"))[0]
BAD = {
    "no messages": _block(0, [], b"", b""),
    "more than one may have": _block(message_blocks.MOST + 1, [4, 0] * (message_blocks.MOST + 1), b"", b""),
    "another number of lengths": _block(2, [len(SEND), 1], SEND, b"x"),
    "commands that are shorter": _block(1, [len(SEND) + 1, 1], SEND, b"x"),
    "contents that are longer": _block(1, [len(SEND), 1], SEND, b"xy"),
    "a frame that is missing": _block(1, [len(SEND), 1], SEND, b"x")[:-1],
    "a frame more": [*_block(1, [len(SEND), 1], SEND, b"x"), b""],
    "another command": _block(1, [3, 0], b"\xaa\xa8\x02", b""),
    "an empty command": _block(1, [0, 0], b"", b""),
    "a subject that is cut short": _block(1, [len(SEND) - 1, 0], SEND[:-1], b""),
    "a NUL in a subject": _block(1, [5, 0], b"\xaa\xa8\x07\x01\x00", b""),
    "a good message and a bad one": _block(2, [len(SEND), 3, 1, 0], SEND + b"abc", b"x"),
}


@each("frames", BAD.values())
def test_what_is_no_block_changes_nothing(frames: list[bytes]) -> None:
    machine = writing()
    machine.receive(b"w", frames, 1.0)
    assert (machine.streams.take_commands(), machine.clients.take_output()) == ({}, [])
    assert machine.clients.by_identity[b"w"].unsynced_sends == {}
    assert machine.clients.counters.malformed == 1


@examples(200)
@given(st.integers(0, 5), st.lists(st.binary(max_size=40) | st.just(SEND), max_size=4))
def test_whatever_comes_is_unpacked_or_refused(count: int, content: list[bytes]) -> None:
    try:
        found = message_blocks.unpack(count, content)
    except BadFrame:
        return
    assert len(list(found.messages())) == len(found.subjects) == len(found.contents) == count


def test_a_client_that_did_not_announce_blocks_sends_one_message() -> None:
    machine = writing(Feature.ACKS)
    machine.receive(b"w", _block(1, [len(SEND), 1], SEND, b"x"), 1.0)
    (order,) = machine.streams.take_commands()[b"st"]
    assert isinstance(order, AcceptMessage)
    assert order.subject == b""
    assert len(order.content) == 3


@each("id_", [b"", b"x", b"x" * 65_535])
@each("behind", [b"", b"\x08"])
def test_an_id_alone_is_read_like_any_field(id_: bytes, behind: bytes) -> None:
    block = b"MS\x01\x07" + struct.pack(">H", len(id_)) + id_ + behind
    assert read(block).message_id == (b"" if behind else id_)
