"""Topics from root, source and symbol. Pure.

Our bridges join all three. OpenMAMA's own bridges use another rule
(:func:`mama_spark.openmama.bridge.row_codec.framed_topics`), needed only to exchange messages with OpenMAMA programs. A
topic cannot be split back into its parts: they are separate fields.
"""

from __future__ import annotations

from .messages.status import Status, StatusError

MAX_TOPIC, MAX_SYMBOL, MAX_SOURCE, MAX_ROOT = 256, 128, 64, 5  #: bytes of UTF-8
SUBSCRIPTION_ROOT = "_MD"  #: of the topics that requests are sent to


def join_topic(root: str | None, source: str | None, symbol: str | None) -> str:
    """Root, source and symbol joined by ``.``; missing and empty parts are skipped; without parts the topic is empty.

    :raises StatusError: BAD_SYMBOL if a part or the whole is too long or holds a NUL
    """
    topic = ".".join(part for part in (root, source, symbol) if part)
    for what, part, most in (
        ("root", root, MAX_ROOT),
        ("source", source, MAX_SOURCE),
        ("symbol", symbol, MAX_SYMBOL),
        ("topic", topic, MAX_TOPIC),
    ):
        # a UTF-8 character has at most four bytes: short parts need not be encoded for this check
        if part and len(part) * 4 > most and len(part.encode("utf-8", "surrogatepass")) > most:
            raise StatusError(Status.BAD_SYMBOL, f"{what} {part!r} is longer than {most} bytes")
    if "\0" in topic:
        raise StatusError(Status.BAD_SYMBOL, f"topic {topic!r} holds a NUL")
    return topic
