"""Status codes of OpenMAMA, and the small enumerations that travel inside messages. Pure.

Numbers are OpenMAMA's. This package stores and compares the *names*; numbers are for programs that call OpenMAMA.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from mama_spark.contracts.errors import MamaError

from .field_types import FieldType


class Status(IntEnum):
    """Every ``MAMA_STATUS_*`` code, under its name without the prefix."""

    OK = 0
    NOMEM = 1
    PLATFORM = 2
    SYSTEM_ERROR = 3
    INVALID_ARG = 4
    NULL_ARG = 5
    NOT_FOUND = 6
    TIMER_FAILURE = 7
    IP_NOT_FOUND = 8
    TIMEOUT = 9
    NOT_ENTITLED = 10
    PROPERTY_TOO_LONG = 11
    MD_NOT_OPENED = 12
    PUB_SUB_NOT_OPENED = 13
    ENTITLEMENTS_NOT_ENABLED = 14
    BAD_TRANSPORT_TYPE = 15
    UNSUPPORTED_IO_TYPE = 16
    TOO_MANY_DISPATCHERS = 17
    NOT_IMPLEMENTED = 18
    WRONG_FIELD_TYPE = 19
    BAD_SYMBOL = 20
    IO_ERROR = 21
    NOT_INSTALLED = 22
    CONFLATE_ERROR = 23
    QUEUE_FULL = 24
    QUEUE_END = 25
    NO_BRIDGE_IMPL = 26
    INVALID_QUEUE = 27
    NOT_MODIFIABLE = 28
    DELETE = 29
    NOT_PERMISSIONED = 4001
    SUBSCRIPTION_INVALID_STATE = 5001
    QUEUE_OPEN_OBJECTS = 5002
    SUBSCRIPTION_INVALID_TYPE = 5003
    SUBSCRIPTION_GAP = 5004
    NOT_INITIALISED = 5005
    NO_SUBSCRIBERS = 5006
    EXPIRED = 5007
    BANDWIDTH_EXCEEDED = 5008


class StatusError(MamaError):
    """A call of the OpenMAMA API failed with this status (PE-31); never :attr:`Status.OK`.

    :ivar status: the status that OpenMAMA would return
    :ivar info: text for logs
    """

    def __init__(self, status: Status, info: str = "") -> None:
        super().__init__(status, info)
        self.status = status
        self.info: str = self.args[1]

    def __str__(self) -> str:
        return f"{self.status.name}: {self.info}" if self.info else self.status.name


class MsgType(IntEnum):
    """``MAMA_MSG_TYPE_*``: field ``MdMsgType``."""

    UPDATE = 0
    INITIAL = 1
    CANCEL = 2
    ERROR = 3
    CORRECTION = 4
    CLOSING = 5
    RECAP = 6
    DELETE = 7
    EXPIRE = 8
    SNAPSHOT = 9
    PREOPENING = 12
    QUOTE = 13
    TRADE = 14
    ORDER = 15
    BOOK_INITIAL = 16
    BOOK_UPDATE = 17
    BOOK_CLEAR = 18
    BOOK_RECAP = 19
    BOOK_SNAPSHOT = 20
    NOT_PERMISSIONED = 21
    NOT_FOUND = 22
    END_OF_INITIALS = 23
    WOMBAT_REQUEST = 24
    WOMBAT_CALC = 25
    SEC_STATUS = 26
    DDICT_SNAPSHOT = 50
    MISC = 100
    TIBRV = 101
    FEATURE_SET = 150
    SYNC_REQUEST = 170
    REFRESH = 171
    WORLD_VIEW = 172
    NEWS_QUERY = 173
    NULL = 175
    ENTITLEMENTS_REFRESH = 176
    UNKNOWN = 199


class MsgStatus(IntEnum):
    """``MAMA_MSG_STATUS_*``: field ``MdMsgStatus``."""

    OK = 0
    LINE_DOWN = 1
    NO_SUBSCRIBERS = 2
    BAD_SYMBOL = 3
    EXPIRED = 4
    TIMEOUT = 5
    MISC = 6
    STALE = 7
    PLATFORM = 8
    NOT_ENTITLED = 9
    NOT_FOUND = 10
    POSSIBLY_STALE = 11
    NOT_PERMISSIONED = 12
    TOPIC_CHANGE = 13
    BANDWIDTH_EXCEEDED = 14
    DUPLICATE = 15
    UNKNOWN = 99


class SubscriptionMsgType(IntEnum):
    """``MAMA_SUBSC_*``: field ``MdSubscMsgType``, the request of a subscriber."""

    SUBSCRIBE = 0
    SNAPSHOT = 1
    UNSUBSCRIBE = 2
    RESUBSCRIBE = 3
    REFRESH = 4
    DDICT_SNAPSHOT = 5
    WORLDVIEW = 6
    DQ_SUBSCRIBER = 7
    DQ_PUBLISHER = 8
    DQ_NETWORK = 9
    DQ_UNKNOWN = 10
    FEATURE_SET = 11
    DQ_GROUP_SUBSCRIBER = 12


class Reserved(NamedTuple):
    """A field of the reserved range 1..100 (and ``wEntitleCode``)."""

    name: str
    fid: int
    type: FieldType  #: as shipped programs write it, else as the library declares it; readers take any width


ISSUE_SYMBOL = ("wIssueSymbol", 305)  #: field with the symbol of the message's topic
RESERVED: dict[str, Reserved] = {
    name: Reserved(name, fid, field_type)
    for name, fid, field_type in (
        ("MdMsgType", 1, FieldType.I32),
        ("MdMsgStatus", 2, FieldType.I32),
        ("MdFieldIndex", 3, FieldType.U16),
        ("MdSubscType", 5, FieldType.I32),
        ("MdMsgNum", 7, FieldType.U8),
        ("MdMsgTotal", 8, FieldType.U8),
        ("MdSeqNum", 10, FieldType.U32),
        ("MdFeedName", 11, FieldType.STRING),
        ("MdFeedHost", 12, FieldType.STRING),
        ("MdFeedGroup", 13, FieldType.STRING),
        ("MdItemSeq", 15, FieldType.U32),
        ("MamaSendTime", 16, FieldType.TIME),
        ("MamaAppDataType", 17, FieldType.U8),
        ("MamaAppMsgType", 18, FieldType.U8),
        ("MamaSenderId", 20, FieldType.U64),
        ("wMsgQual", 21, FieldType.U8),
        ("MdSubscriptionType", 60, FieldType.I32),
        ("MdSubscMsgType", 61, FieldType.I32),
        ("MdSubscSourceHost", 63, FieldType.STRING),
        ("MdSubscSourceUser", 65, FieldType.STRING),
        ("MdSubscSymbol", 71, FieldType.STRING),
        ("MamaTportName", 72, FieldType.STRING),
        ("MdSubscNamespace", 73, FieldType.STRING),
        ("MamaSymbolList", 81, FieldType.VECTOR_STRING),
        ("wEntitleCode", 496, FieldType.U32),
    )
}
