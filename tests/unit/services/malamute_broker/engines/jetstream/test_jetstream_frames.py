"""The payload of a message is split into frames only if the stored lengths match it."""

from __future__ import annotations

from mama_spark.services.malamute_broker.engines.jetstream.message_codec import decode

from tests.support.tables import each


@each(
    ("lengths", "frames"),
    [
        (b"1.3", [b"b", b"ody"]),
        (b"0.4.0", [b"", b"body", b""]),
        (b"1.2", [b"body"]),
        (b"1.4", [b"body"]),
        (b"4.1", [b"body"]),
        (b"1.", [b"body"]),
        (b"-", [b"body"]),
    ],
)
def test_lengths_that_do_not_add_up_to_the_payload_are_ignored(lengths: bytes, frames: list[bytes]) -> None:
    assert decode(b"a", b"body", b"NATS/1.0\r\nMlp-Frames: %b\r\n\r\n" % lengths).content == frames
