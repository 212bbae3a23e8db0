"""Topics from root, source and symbol. Pure.

Our bridges join all three (:func:`join_topic`). OpenMAMA's own bridges use other rules (:func:`framed_topic`), needed
only to exchange messages with OpenMAMA programs. A topic cannot be split back into its parts: they are separate fields.
"""

from __future__ import annotations

from .messages.status import Status, StatusError

MAX_TOPIC, MAX_SYMBOL, MAX_SOURCE, MAX_ROOT = 256, 128, 64, 5  #: bytes of UTF-8

DICTIONARY_ROOT = "_MDDD"


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


def framed_topic(framing: str, root: str | None, source: str | None, symbol: str | None) -> str:
    """The topic as an OpenMAMA bridge frames it.

    :param framing: ``zeromq`` (ZMQ, OZ and NNG: under a root other than the dictionary's the symbol is dropped) or
        ``qpid`` (the symbol is dropped only under roots that begin with ``_MD``, the dictionary's excepted)
    :raises StatusError: BAD_SYMBOL as :func:`join_topic`; INVALID_ARG for another framing
    """
    if framing not in ("zeromq", "qpid"):
        raise StatusError(Status.INVALID_ARG, f"framing must be zeromq or qpid, got {framing!r}")
    if root and root != DICTIONARY_ROOT and (framing == "zeromq" or root.startswith("_MD")):
        symbol = None
    return join_topic(root, source, symbol)
