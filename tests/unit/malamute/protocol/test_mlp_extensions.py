"""Extensions of commands, and the answers that they carry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.malamute.broker.session.state_machine import ServerMachine
from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import BadFrame, Command, Confirm, Ok, Pong, decode, encode
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

from tests.support.malamute.client_machine import connected
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
    assert not read(b"")
    assert Extension(sequence=0)


@examples(500)
@given(st.binary(max_size=80), st.booleans())
def test_unreadable_bytes_say_nothing_and_raise_nothing(octets: bytes, ours: bool) -> None:
    extension = read((b"MS\x01" if ours else b"") + octets)
    if not ours and not octets.startswith(b"MS\x01"):
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


def test_unknown_fields_and_wrong_sizes_are_skipped_alone() -> None:
    known = write(Extension(credit=5))
    assert read(known + b"\x63\0\x02zz") == Extension(credit=5)
    assert read(known + b"\x03\0\x01z") == Extension(credit=5)
    assert read(known + b"\x06\0\x02zz" + b"\x08\0\x01z" + b"\x08\0\x02\xff\xff") == Extension(credit=5)
    assert read(known + b"\x06\0\x0d" + b"\x63" + b"\0" * 12) == Extension(credit=5), "an outcome of a later version"
    assert read(b"MS\x01\x01\0\x04\xff\xff\xff\xff").features == Feature(sum(Feature)), "features of a later version"


def test_another_version_is_ignored() -> None:
    assert read(b"MS\x02" + write(FULL)[3:]) == NO_EXTENSION


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


def test_a_peer_without_extensions_reads_the_same_command() -> None:
    plain = commands.StreamSend(b"s", [b"body"])
    extended = commands.decode(commands.encode(commands.StreamSend(b"s", [b"body"], write(FULL))))
    assert isinstance(extended, commands.StreamSend)
    assert (extended.subject, extended.content) == (plain.subject, plain.content)
    assert read(extended.trailing) == FULL


def test_more_runs_than_a_field_holds_go_into_several() -> None:
    many = Extension(acks=tuple(AckRun(StoreOutcome.STORED, 1, 2 * n) for n in range(1, 20_000)))
    assert read(write(many)) == many


def test_last_of_a_run() -> None:
    assert AckRun(StoreOutcome.STORED, 3, 10).last == 12
    assert AckRun(StoreOutcome.ACCEPTED, 3).last == 0


# --- replies to clients: after all engines have answered, only to requests, and not to expired calls ------------------


def opened(machine: ServerMachine, client: bytes, features: Feature) -> None:
    machine.receive(client, encode(commands.Open(client, write(Extension(features=features)))), 0.0)
    machine.clients.take_output()


def said(machine: ServerMachine) -> list[Command]:
    out = machine.clients.take_output()
    return [decode(frames) for _, frames in out]


def test_a_ping_is_answered_when_the_engines_of_all_streams_have_answered() -> None:
    machine = server()
    opened(machine, b"w", Feature.ACKS)
    for stream in (b"a", b"b"):
        machine.receive(b"w", encode(commands.StreamWrite(stream)), 0.0)
        machine.command_done(stream)
        machine.receive(b"w", encode(commands.StreamSend(b"s", [b"1"])), 0.0)
    said(machine)
    machine.receive(b"w", encode(commands.Ping()), 0.0)
    run = AckRun(StoreOutcome.STORED, 1, 1)
    machine.command_done(b"b", outcomes=(run,))
    assert said(machine) == []
    machine.command_done(b"a", outcomes=(run,))
    (pong,) = said(machine)
    assert isinstance(pong, Pong)
    assert read(pong.trailing).acks == (run, run)


@each("service", [False, True])
@each("tracker", [b"", b"t"])
def test_who_sends_a_letter_without_a_tracker_is_told_nothing_of_it(tracker: bytes, service: bool) -> None:
    machine = server()
    opened(machine, b"w", Feature.CONFIRM)
    opened(machine, b"r", Feature(0))
    if service:
        machine.receive(b"r", encode(commands.ServiceOffer(b"r", b"")), 0.0)
        said(machine)
    letter = (commands.ServiceSend if service else commands.MailboxSend)(b"r", b"s", tracker)
    machine.receive(b"w", encode(letter), 0.0)
    assert [type(command) is Confirm for command in said(machine)].count(True) == bool(tracker)


def test_a_subscription_that_was_cancelled_does_not_come_back_after_a_reconnect() -> None:
    """Nor does its position, where it is read again."""
    client = connected(Feature.SEQUENCE)

    def call(command: Command) -> None:
        client.call(command, 9.0)
        client.receive(encode(Ok()), 0.0)

    for stream in (b"kept", b"left", b"again"):
        call(commands.StreamRead(stream, b".*"))
        client.receive(encode(commands.StreamDeliver(stream, b"w", b"s", [], write(Extension(sequence=5)))), 0.0)
    call(commands.StreamCancel(b"left"))
    call(commands.StreamCancel(b"again"))
    call(commands.StreamRead(b"again", b".*"))
    client.lost(1.0)
    client.receive(encode(Ok(trailing=write(Extension(features=Feature.SEQUENCE)))), 1.0)
    asked = [decode(frames) for frames in client.out]
    reads = [(one.stream, read(one.trailing).after) for one in asked if isinstance(one, commands.StreamRead)]
    assert reads == [(b"kept", 5), (b"again", None)]
