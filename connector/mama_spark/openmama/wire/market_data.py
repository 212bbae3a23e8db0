"""Messages between a market data publisher and its subscribers. Pure.

Subscribers send to ``_MD.<source>``; the publisher answers into the inbox of the request, and publishes updates to
``<source>.<symbol>``. The dictionary is asked for at ``_MDDD.<source>.DATA_DICT``.
"""

from __future__ import annotations

from dataclasses import dataclass

from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import Field, MamaMsg, reserved_field
from mama_spark.mama.messages.status import ISSUE_SYMBOL, MsgStatus, MsgType, SubscriptionMsgType
from mama_spark.mama.topics import SUBSCRIPTION_ROOT

DICTIONARY_ROOT, DICTIONARY_SYMBOL = "_MDDD", "DATA_DICT"
NORMAL, GROUP, BOOK, DICTIONARY = 0, 1, 2, 4  #: MdSubscriptionType
#: Requests that an image of type RECAP answers.
RECAPS = frozenset(
    {
        SubscriptionMsgType.DQ_SUBSCRIBER,
        SubscriptionMsgType.DQ_PUBLISHER,
        SubscriptionMsgType.DQ_NETWORK,
        SubscriptionMsgType.DQ_UNKNOWN,
        SubscriptionMsgType.DQ_GROUP_SUBSCRIBER,
    }
)
#: Statuses by which an image refuses a subscription, by the words of the configuration.
REFUSALS: dict[str, MsgStatus] = {
    status.name: status
    for status in (
        MsgStatus.NO_SUBSCRIBERS,
        MsgStatus.BAD_SYMBOL,
        MsgStatus.EXPIRED,
        MsgStatus.TIMEOUT,
        MsgStatus.NOT_ENTITLED,
        MsgStatus.NOT_FOUND,
        MsgStatus.NOT_PERMISSIONED,
        MsgStatus.BANDWIDTH_EXCEEDED,
    )
}
#: The stamps, which a publisher writes itself; 64-bit ones cannot be read by real programs.
STAMPS = frozenset({"MdMsgType", "MdMsgStatus", "MdSeqNum", "MamaSenderId", "MdMsgNum", "MdMsgTotal", ISSUE_SYMBOL[0]})


@dataclass(frozen=True, slots=True)
class MarketDataRequest:
    """Request of a subscriber.

    :ivar kind: :data:`NORMAL`, :data:`GROUP`, :data:`BOOK` or :data:`DICTIONARY`
    :ivar message: a number of :class:`~mama_spark.mama.messages.status.SubscriptionMsgType`
    :ivar host: address that the subscriber states; not checked
    """

    symbol: str
    kind: int
    message: int
    host: str = ""


def subscription_topic(source: str) -> str:
    return f"{SUBSCRIPTION_ROOT}.{source}"


def dictionary_topic(source: str) -> str:
    return f"{DICTIONARY_ROOT}.{source}.{DICTIONARY_SYMBOL}"


def read_request(msg: MamaMsg) -> MarketDataRequest | str | None:
    """Reads a message to a source: a request, the text of what it lacks, or None without MdSubscriptionType."""
    kind, message, symbol = (msg.reserved(n) for n in ("MdSubscriptionType", "MdSubscMsgType", "MdSubscSymbol"))
    if not isinstance(kind, int):
        return None
    if not isinstance(symbol, str) or not symbol:
        return "a request without a symbol"
    if not isinstance(message, int):
        return "a request without the type of its message"
    host = msg.reserved("MdSubscSourceHost", "")
    return MarketDataRequest(symbol, kind, message, host if isinstance(host, str) else "")


def request_message(request: MarketDataRequest) -> MamaMsg:
    """The fields of a request, as real subscribers order and type them."""
    return MamaMsg(
        [
            reserved_field("MdSubscSymbol", FieldType.STRING, request.symbol),
            reserved_field("MdSubscriptionType", FieldType.I32, request.kind),
            reserved_field("MdSubscMsgType", FieldType.I32, request.message),
            reserved_field("MamaAppDataType", FieldType.U8, 0),
            reserved_field("MdSubscType", FieldType.I32, request.message),
            reserved_field("MdSubscSourceHost", FieldType.STRING, request.host),
        ]
    )


@dataclass(frozen=True, slots=True)
class Stamp:
    """Statements of a publisher in each message.

    :ivar number: number of the topic's messages; None = without numbers, and then without sender
    :ivar symbol: None = not stated
    """

    type: int = MsgType.UPDATE
    status: int = MsgStatus.OK
    number: int | None = None
    sender: int = 0
    symbol: str | None = None

    def fields(self) -> list[Field]:
        found = [
            reserved_field("MdMsgType", FieldType.U8, int(self.type)),
            reserved_field("MdMsgStatus", FieldType.U8, int(self.status)),
        ]
        if self.number is not None:
            found.append(reserved_field("MdSeqNum", FieldType.U32, self.number))
        if self.symbol is not None:
            found.append(Field(*ISSUE_SYMBOL, FieldType.STRING, self.symbol))
        if self.number is not None and self.sender:
            found.append(reserved_field("MamaSenderId", FieldType.U64, self.sender))
        return found


def stamped(stamp: Stamp, fields: list[Field]) -> MamaMsg:
    """A message of a publisher: its stamps, then the data; stamps among the data give way."""
    return MamaMsg(stamp.fields() + [f for f in fields if f.name not in STAMPS])


def refusal(symbol: str, status: MsgStatus, number: int = 1, sender: int = 0) -> MamaMsg:
    """The image that refuses a subscription: the subscriber's onError has this status."""
    return MamaMsg(Stamp(MsgType.INITIAL, status, number, sender, symbol).fields())


def refresh_answer(number: int | None, sender: int) -> MamaMsg:
    """The message to all subscribers of a topic when one of them refreshes its subscription."""
    return MamaMsg(Stamp(MsgType.REFRESH, MsgStatus.MISC, number, sender).fields())
