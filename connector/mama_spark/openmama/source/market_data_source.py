"""A market data publisher: its answers to requests, and what it publishes. Pure.

Each topic has a number, which counts its updates, and an image, the newest value of each of its fields. An image has
the number of the last update and the next update one more: a subscriber that misses a number asks for an image again.
Updates come from records of a log: OMNM messages, or JSON objects with the types of a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import orjson

from mama_spark.contracts.errors import MamaError
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import Field, MamaMsg, reserved_field
from mama_spark.mama.messages.omnm import BadMessage, decode, encode
from mama_spark.mama.messages.sequence_numbers import REPEATING, UNCOUNTED, next_number
from mama_spark.mama.messages.status import RESERVED, MsgStatus, MsgType, Status, StatusError, SubscriptionMsgType
from mama_spark.mama.messages.values import MamaPrice, MamaTime
from mama_spark.openmama.wire.dictionary import DICTIONARY_SOURCE, DictionaryEntry, by_name, dictionary_message
from mama_spark.openmama.wire.frames import BridgeFrame, FrameType
from mama_spark.openmama.wire.market_data import (
    RECAPS,
    STAMPS,
    MarketDataRequest,
    Stamp,
    dictionary_topic,
    read_request,
    refresh_answer,
    refusal,
    stamped,
    subscription_topic,
)

#: Types of messages that hold all fields of a topic: they are served as updates.
_WHOLE = REPEATING | {MsgType.SNAPSHOT, MsgType.BOOK_SNAPSHOT}


class BadRecord(MamaError):
    """A record of the log that is no message; the text says why."""


def fields_of(payload: bytes, dictionary: Mapping[str, DictionaryEntry]) -> tuple[int, list[Field]]:
    """Type of the message, and its fields without the stamps, which the publisher writes itself.

    :raises BadRecord: it is neither an OMNM message nor a JSON object
    """
    if payload[:1] == b"O":
        try:
            msg = decode(payload)
        except BadMessage as e:
            raise BadRecord(f"no OMNM message: {e.info}") from None
    else:
        msg = _of_json(payload, dictionary)
    kind = msg.reserved("MdMsgType", int(MsgType.UPDATE))
    if not isinstance(kind, int) or kind in _WHOLE:
        kind = int(MsgType.UPDATE)
    return kind, [f for f in msg if f.name not in STAMPS]


def _of_json(payload: bytes, dictionary: Mapping[str, DictionaryEntry]) -> MamaMsg:
    try:
        found = orjson.loads(payload)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise BadRecord("neither an OMNM message nor a JSON object")
    msg = MamaMsg()
    for name, value in found.items():
        if value is None:
            continue
        entry = dictionary.get(name)
        kind = _natural(value) if entry is None else entry.type
        if kind is None:
            raise BadRecord(f"field {name!r}: {type(value).__name__} has no type of a field")
        fid = entry.fid if entry is not None else RESERVED[name].fid if name in RESERVED else 0
        try:
            msg.add(kind, name, fid, _converted(kind, value))
        except (StatusError, ValueError, TypeError) as e:
            raise BadRecord(f"field {name!r}: {e.info if isinstance(e, StatusError) else e}") from None
    return msg


def _natural(value: Any) -> FieldType | None:
    if isinstance(value, bool):
        return FieldType.BOOL
    if isinstance(value, int):
        return FieldType.I64 if value < 1 << 63 else FieldType.U64
    if isinstance(value, float):
        return FieldType.F64
    return FieldType.STRING if isinstance(value, str) else None


def _converted(kind: FieldType, value: Any) -> Any:
    if kind is FieldType.PRICE:
        return MamaPrice(float(value))
    if kind is FieldType.TIME:
        from datetime import datetime

        at = datetime.fromisoformat(value)
        if at.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        return MamaTime.from_us(round(at.timestamp() * 1e6))
    if kind is FieldType.STRING and not isinstance(value, str):
        return orjson.dumps(value).decode()
    return value


#: Requests that an image of type INITIAL answers.
_IMAGES = (SubscriptionMsgType.SUBSCRIBE, SubscriptionMsgType.SNAPSHOT)


class PublishMessage(NamedTuple):
    topic: str
    payload: bytes


class AnswerRequest(NamedTuple):
    request: BridgeFrame
    payload: bytes
    topic: str


class PublisherEvent(NamedTuple):
    """One of the callbacks of OpenMAMA's publishers: ``onRequest``, ``onNewRequest``, ``onRefresh``, ``onMsg``,
    ``onError``, ``onCreate``, ``onDestroy``.

    :ivar status: name of the status of an error, or of a refusal
    """

    callback: str
    symbol: str
    info: str = ""
    status: str = ""


SourceAction = PublishMessage | AnswerRequest | PublisherEvent


StoredTopic = tuple[str, int, bytes]  #: symbol, number and image of a :class:`PublishedTopic`


@dataclass(slots=True)
class PublishedTopic:
    """One symbol.

    :ivar number: number of its last update; 0: there was none
    :ivar image: the newest value of each field, by name and number
    """

    symbol: str
    number: int = 0
    image: dict[tuple[str, int], Field] = field(default_factory=dict)

    def payload(self) -> bytes:
        """The image as bytes, for storing it."""
        return encode(MamaMsg(list(self.image.values())))

    @classmethod
    def of(cls, symbol: str, number: int, payload: bytes) -> PublishedTopic:
        """A topic with its stored image, as :meth:`payload` returns it.

        :raises BadMessage: ``payload`` cannot be decoded
        """
        return cls(symbol, number, {(f.name, f.fid): f for f in decode(payload)})


@dataclass(frozen=True, slots=True)
class SourceRules:
    """The rules by which a source answers.

    :ivar refuse: patterns of symbols (``*``, ``?``) and the status that refuses them; the first match counts
    :ivar unknown: refuses symbols without a record so far; None: they get no answer, and ask again
    :ivar groups: name of a group -> symbols of its members
    :ivar dictionary: served to who asks
    """

    refuse: Sequence[tuple[str, MsgStatus]] = ()
    unknown: MsgStatus | None = MsgStatus.NOT_FOUND
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    dictionary: Sequence[DictionaryEntry] = ()

    def status_for(self, symbol: str) -> MsgStatus | None:
        return next((status for pattern, status in self.refuse if fnmatchcase(symbol, pattern)), None)


class MarketDataSource:
    """One source.

    :param sender: identifies this publisher: the same after a restart
    :ivar changed: symbols whose number or image changed since :meth:`take_changed`
    """

    def __init__(self, name: str, sender: int, rules: SourceRules = SourceRules(),
                 topics: Iterable[PublishedTopic] = ()) -> None:  # fmt: skip
        self.name, self.sender, self._rules = name, sender, rules
        self.topics = {topic.symbol: topic for topic in topics}
        self.changed: set[str] = set()
        self._groups_of: dict[str, list[str]] = {}
        for group, members in rules.groups.items():
            for member in members:
                self._groups_of.setdefault(member, []).append(group)
        self.dictionary = by_name(rules.dictionary)
        self._dictionary = encode(dictionary_message(rules.dictionary)) if rules.dictionary else None

    @property
    def request_topics(self) -> list[str]:
        sources = dict.fromkeys((self.name, DICTIONARY_SOURCE)) if self._dictionary is not None else ()
        return [subscription_topic(self.name), *(dictionary_topic(source) for source in sources)]

    def take_changed(self) -> list[StoredTopic]:
        """Take the changes that must be stored, as of now."""
        changed, self.changed = self.changed, set()
        return [(t.symbol, t.number, t.payload()) for t in (self.topics[symbol] for symbol in sorted(changed))]

    # --- updates ---------------------------------------------------------------------------------------------

    def update(self, symbol: str, fields: Sequence[Field], kind: int = MsgType.UPDATE) -> list[SourceAction]:
        """Publish new values of a symbol with the next number, and keep them for images."""
        actions: list[SourceAction] = []
        topic = self.topics.get(symbol)
        if topic is None:
            topic = self.topics[symbol] = PublishedTopic(symbol)
            actions.append(PublisherEvent("onCreate", symbol))
        if kind not in UNCOUNTED:
            topic.number = next_number(topic.number)
        for f in fields:
            topic.image[f.name, f.fid] = f
        self.changed.add(symbol)
        payload = encode(stamped(self._stamp(topic, kind), list(fields)))
        for place in (symbol, *self._groups_of.get(symbol, ())):
            actions.append(PublishMessage(self.topic_of(place), payload))
        return actions

    def topic_of(self, symbol: str) -> str:
        return f"{self.name}.{symbol}"

    def _stamp(self, topic: PublishedTopic, kind: int) -> Stamp:
        return Stamp(kind, MsgStatus.OK, topic.number, self.sender, topic.symbol)

    def _image(self, topic: PublishedTopic, kind: int, part: tuple[int, int] | None = None) -> bytes:
        """A message with all fields of a topic, encoded.

        :param part: number of this image (from 1) and number of all images that answer the request; None: it has one
        """
        msg = stamped(self._stamp(topic, kind), list(topic.image.values()))
        if part is not None:
            for name, value in zip(("MdMsgNum", "MdMsgTotal"), part, strict=True):
                msg.fields.append(reserved_field(name, FieldType.U16, value))
        return encode(msg)

    # --- requests --------------------------------------------------------------------------------------------

    def received(self, frame: BridgeFrame) -> list[SourceAction]:
        """Take a message that came to one of :attr:`request_topics`."""
        try:
            msg = decode(frame.payload)
        except BadMessage as e:
            return [_no_request(f"no OMNM message: {e.info}")]
        if frame.topic != subscription_topic(self.name):
            return self._ask_dictionary(frame)
        request = read_request(msg)
        if request is None:
            symbol = msg.get("wIssueSymbol", None) or msg.get("MdSubscSymbol", None) or ""
            return [PublisherEvent("onMsg", symbol if isinstance(symbol, str) else "")]
        if isinstance(request, str):
            return [_no_request(request)]
        return self._requested(frame, request)

    def _ask_dictionary(self, frame: BridgeFrame) -> list[SourceAction]:
        asked: list[SourceAction] = [PublisherEvent("onRequest", frame.topic, "dictionary")]
        if frame.type is FrameType.REQUEST and self._dictionary is not None:
            asked.append(AnswerRequest(frame, self._dictionary, frame.topic))
        return asked

    def _requested(self, frame: BridgeFrame, request: MarketDataRequest) -> list[SourceAction]:
        symbol, info = request.symbol, _shown(request)
        refused = self._rules.status_for(symbol)
        members = [self.topics[s] for s in self._rules.groups.get(symbol, ()) if s in self.topics]
        topic = self.topics.get(symbol)
        if topic is not None:
            members = [topic]
        if refused is None and not members:
            refused, callback = self._rules.unknown, "onNewRequest"
            if refused is None:
                return [PublisherEvent(callback, symbol, f"{info}; not answered")]
        else:
            callback = "onRefresh" if request.message == SubscriptionMsgType.REFRESH else "onRequest"
        if refused is not None:
            event = PublisherEvent(callback, symbol, f"{info}; refused: {refused.name}", refused.name)
            return [event, *self._answer(frame, symbol, [encode(refusal(symbol, refused, 1, self.sender))])]
        event = PublisherEvent(callback, symbol, info)
        if request.message == SubscriptionMsgType.REFRESH:
            answer = encode(refresh_answer(members[0].number, self.sender))
            return [event, PublishMessage(self.topic_of(symbol), answer)]
        kind = MsgType.RECAP if request.message in RECAPS else MsgType.INITIAL
        if kind != MsgType.RECAP and request.message not in _IMAGES:
            return [event]
        several = symbol in self._rules.groups and topic is None
        images = [self._image(one, kind, (n, len(members)) if several else None) for n, one in enumerate(members, 1)]
        if frame.type is not FrameType.REQUEST and kind != MsgType.RECAP:
            return [event]  # a subscription that wants no image
        return [event, *self._answer(frame, symbol, images)]

    def _answer(self, frame: BridgeFrame, symbol: str, payloads: list[bytes]) -> list[SourceAction]:
        """Reply into the inbox of a request; to all, if it has none."""
        topic = self.topic_of(symbol)
        if frame.type is FrameType.REQUEST:
            return [AnswerRequest(frame, payload, topic) for payload in payloads]
        return [PublishMessage(topic, payload) for payload in payloads]


def _no_request(why: str) -> PublisherEvent:
    status = Status.NOT_FOUND.name
    return PublisherEvent("onError", "", f"{status}: {why}", status)


def _shown(request: MarketDataRequest) -> str:
    try:
        return SubscriptionMsgType(request.message).name
    except ValueError:
        return f"message type {request.message}"
