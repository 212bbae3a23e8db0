"""Finds and creates streams for publishers: which stream takes a topic, and how it acknowledges.

The stream of a topic is looked up once a connection, the settings of a stream once a bridge.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable

from ..error_codes import NO_RESPONDERS
from ..protocol.headers import EXPECTED_STREAM
from ..protocol.parser import Frame
from ..settings import DEFAULT_API_PREFIX, NatsSettings
from ..subjects import Filters
from .answers import (
    CREATE_FAILED,
    FAST_SINCE,
    NO_STREAM,
    OFF,
    ApiError,
    ApiForbidden,
    StreamInfo,
    TraceEvent,
    answer_of,
)
from .client import JetStream
from .request_retry import ServerNotReady

#: Topics that are looked up one by one; with more, the whole list of streams is fetched.
_SINGLE_LOOKUPS = 8
#: A name that no stream has: a message that expects it is refused by every stream, and stored nowhere.
NOBODY = {EXPECTED_STREAM: "?"}
_ASKED_AT_ONCE = 256
#: Minimum number of questions about where topics lead: an account may map a topic by weights to several streams. As
#: many topics, at most, are asked for again until this number is reached.
_QUESTIONS = 64
#: First version of the server that traces messages; of a trace: a client's event, events that change the subject, and
#: the delivery to a client or another server.
_TRACES_SINCE, _FROM_CLIENT, _LEADS_AWAY, _SENT_ON = (2, 11), 0, ("sm", "si"), "eg"


class StreamCache:
    """Streams of one account that have been looked up.

    :ivar unrouted: topics without a stream
    :ivar asked: topics for which the server was asked where a publish leads
    :ivar led: the streams to which asked topics lead: several, where the account maps a topic by weights
    :ivar traces: the server has told, or was not asked, where publishes would lead
    :ivar complete: all streams are known
    :ivar fresh: streams whose settings the bridge that uses the cache now has asked for
    :ivar info_denied: streams that the permissions hide
    :ivar lookup_denied: the permissions do not allow to look up streams
    """

    def __init__(self) -> None:
        self.streams: dict[str, StreamInfo] = {}
        self.filters = Filters()
        self.unrouted: set[str] = set()
        self.asked: set[str] = set()
        self.led: dict[str, set[str]] = {}
        self.traces, self.complete = True, False
        self.info_denied: set[str] = set()
        self.lookup_denied = False
        self.fresh: set[str] = set()

    def add(self, stream: StreamInfo) -> None:
        self.streams[stream.name] = stream
        self.fresh.add(stream.name)
        for subject in stream.subjects:
            self.filters.add(subject, stream.name)

    def reuse(self) -> None:
        """For another bridge: missing streams may exist by now, settings and mappings by weights may differ."""
        weighted = {topic for topic, streams in self.led.items() if len(streams) > 1}
        self.led = {topic: streams for topic, streams in self.led.items() if topic not in weighted}
        self.asked -= self.unrouted | weighted
        self.unrouted.clear()
        self.complete = False
        self.fresh.clear()

    def forget(self) -> None:
        """Forget the streams of the topics, which have changed."""
        self.streams.clear()
        self.filters = Filters()
        self.asked.clear()
        self.led.clear()
        self.info_denied.clear()
        self.reuse()

    def unknown(self, topics: list[str]) -> list[str]:
        return [t for t in topics if t not in self.unrouted and self.filters.owner(t) is None]


def check_jetstream(api: JetStream, cache: StreamCache) -> None:
    """Note in ``cache`` if the permissions do not allow to look up streams.

    :raises ConfigError: JetStream is off for the server or the account
    :raises Unavailable: no answer below the prefix of another domain or account
    """
    try:
        api.request("INFO", final=(NO_RESPONDERS, *OFF))
    except ApiForbidden:
        cache.lookup_denied = True
    except ApiError as e:
        if e.code == NO_RESPONDERS and api.prefix != DEFAULT_API_PREFIX:
            raise Unavailable(
                f"nobody answers to {api.prefix}INFO: the JetStream domain (option jsDomain) or the account that "
                "exports the API (option jsApiPrefix) is not connected now, or the option is wrong"
            ) from None
        if e.code == NO_RESPONDERS:
            raise ConfigError("JetStream is not enabled on the server, or not for this account") from None
        if e.code in OFF:
            raise ConfigError(f"JetStream is off: {e.description}") from None
        raise Unavailable(f"JetStream does not answer properly: {e.description}") from e


def stream_info(api: JetStream, cache: StreamCache, name: str) -> StreamInfo | None:
    """Look up and cache a stream; None: it does not exist, or the permissions hide it. Unavailable: no answer."""
    return stream_infos(api, cache, [name])[0]


def stream_infos(api: JetStream, cache: StreamCache, names: Sequence[str]) -> list[StreamInfo | None]:
    """The states of several streams, asked for at once (:func:`stream_info`)."""
    found: list[StreamInfo | None] = []
    for name, answer in zip(names, api.request_all([(f"STREAM.INFO.{name}", None) for name in names]), strict=True):
        stream = None
        if isinstance(answer, ApiForbidden):
            cache.info_denied.add(name)
        else:
            stream = info_in(name, answer)
        if stream is not None:
            cache.add(stream)
        found.append(stream)
    return found


def info_in(name: str, answer: dict[str, Any] | MamaError) -> StreamInfo | None:
    """The stream of an answer to ``STREAM.INFO``; None = there is none. ApiForbidden, Unavailable: unknown."""
    if isinstance(answer, ApiError):
        if answer.code != NO_STREAM:
            raise Unavailable(f"stream {name!r}: {answer.description}") from answer
        return None
    if isinstance(answer, MamaError):
        raise answer
    return StreamInfo.of(answer)


def stream_names(api: JetStream, subject: str | None = None) -> list[str]:
    """Names of all streams, or of those that take ``subject``; :class:`ApiForbidden` if the permissions hide them."""
    body = {} if subject is None else {"subject": subject}
    return list(api.listed("STREAM.NAMES", "streams", body))


def create(api: JetStream, name: str, subjects: list[str], settings: NatsSettings, **more: Any) -> StreamInfo:
    """Create a stream for a publisher with these settings, and ``more`` in the words of the API; repeated while the
    server still removes the files of a deleted stream of this name. ConfigError: the server rejects it."""
    return create_all(api, [{"name": name, "subjects": subjects, **more}], settings)[0]


def create_all(api: JetStream, configs: Sequence[dict[str, Any]], settings: NatsSettings) -> list[StreamInfo]:
    """The states of several streams, made at once (:func:`create`)."""
    common = {
        "storage": "file",
        "num_replicas": 1,
        "duplicate_window": round(duplicate_window(settings) * 1e9),
        # some older servers refuse, some ignore what they do not know
        **({"allow_batched": True} if api.connection().info.version_numbers >= FAST_SINCE else {}),
    }
    answers = api.request_all([(f"STREAM.CREATE.{config['name']}", {**common, **config}) for config in configs])
    return [_created(config["name"], answer) for config, answer in zip(configs, answers, strict=True)]


def _created(name: str, answer: dict[str, Any] | MamaError) -> StreamInfo:
    if isinstance(answer, ApiForbidden):
        raise ConfigError(f"no permission to create the stream {name!r}") from None
    if isinstance(answer, ApiError):
        raise ConfigError(f"cannot create the stream {name!r}: {answer.description}") from answer
    if isinstance(answer, MamaError):
        last = answer.__cause__
        if isinstance(last, ServerNotReady) and last.code == CREATE_FAILED:
            raise ConfigError(f"cannot create the stream {name!r}: {last}") from answer
        raise answer
    return StreamInfo.of(answer)


def advice_to_create(api: JetStream, name: str) -> str:
    """Advice for a missing stream, by the user's permissions. The request has no configuration, so it creates none."""
    with contextlib.suppress(ApiError, Unavailable):
        try:
            api.request(f"STREAM.CREATE.{name}", {})
        except ApiForbidden as e:
            return f"another user must make what is missing: {e}"
    return "createStream=true makes what is missing"


def duplicate_window(settings: NatsSettings) -> float:
    """Seconds for which a stream must remember an id: for all resends, or for messages in transit. It counts from the
    storage of a message, and a resend arrives later than it is sent, by an unknown time: half is left for that."""
    return max(2 * (settings.wait_timeout if settings.exactly_once else settings.retry_deadline), 0.1)


def refresh(api: JetStream, cache: StreamCache, names: Iterable[str | None]) -> None:
    """Ask again for streams known from an earlier bridge; forget all if one is gone or takes other topics."""
    known = [cache.streams[name] for name in {*names} - cache.fresh if name in cache.streams]
    now = stream_infos(api, cache, [stream.name for stream in known])
    if any(new is None or new.subjects != old.subjects for old, new in zip(known, now, strict=True)):
        cache.forget()


def look_up(api: JetStream, cache: StreamCache, topics: list[str]) -> None:
    """Find the streams of ``topics`` by a few requests, for any number of topics."""
    refresh(api, cache, map(cache.filters.owner, topics))
    for _ in range(_SINGLE_LOOKUPS):
        topics = cache.unknown(topics)
        if not topics or cache.lookup_denied:
            return
        if cache.complete:
            break
        try:
            found = stream_names(api, topics[0])
        except ApiForbidden:
            cache.lookup_denied = True
            return
        if not found:
            cache.unrouted.add(topics[0])
        for name in found:
            stream_info(api, cache, name)
            if cache.filters.owner(topics[0]) is None:
                cache.filters.add(topics[0], name)  # the server's answer wins over the filters: it applies transforms
    topics = cache.unknown(topics)
    if topics and not cache.complete:
        with contextlib.suppress(ApiForbidden):
            for name in stream_names(api):
                if name not in cache.streams:
                    stream_info(api, cache, name)
        cache.complete = True
        topics = cache.unknown(topics)
    cache.unrouted.update(topics)


def led_away(api: JetStream, cache: StreamCache, topics: list[str]) -> tuple[list[str], list[str]]:
    """Trace topics (NATS ADR-41): the server tells what it would do with a message, and delivers none. Returns
    topics that mappings or imports of the account lead to another stream than their subjects say, or, without a
    stream, to another server; and topics without an answer, because the server is too old or the user may not
    publish to an inbox."""
    straight, away, unheard = set[str](), set[str](), set[str]()
    connection, waiting = api.connection(), [topic for topic in topics if topic not in cache.asked]
    if not waiting or not cache.traces or connection.info.version_numbers < _TRACES_SINCE:
        return [], waiting

    def hear(message: Frame) -> None:
        events = TraceEvent.all_of(message.payload)
        if not events or events[0].kind != _FROM_CLIENT:
            return  # of a server behind the one that maps
        topic = events[0].subject
        unheard.discard(topic)
        if not events[0].failed:
            owned = cache.filters.owner(topic) is not None
            (away if any(_leads_away(event, owned) for event in events[1:]) else straight).add(topic)

    refused: list[bool] = []
    connection.drive(api.attempt_timeout, lambda: connection.up)  # it may have been lost since it was driven last
    lost = connection.loss()
    number, inbox = connection.answers.expect(hear)
    headers = {**NOBODY, "Nats-Trace-Dest": inbox.decode(), "Nats-Trace-Only": "true"}
    try:
        with connection.denials.watch(inbox.decode(), lambda _: refused.append(True)):
            for first in range(0, len(waiting), _ASKED_AT_ONCE):
                some = waiting[first : first + _ASKED_AT_ONCE]
                unheard.update(some)
                for topic in some:
                    connection.publish(topic, b"", headers=headers)
                connection.drive(api.attempt_timeout, lambda: bool(refused or not unheard or lost()))
                cache.traces = not unheard
                if unheard:
                    connection.ping(api.attempt_timeout)  # it may say nothing at all: that is an outage
                    break
    finally:
        connection.answers.forget(number)
    cache.asked |= straight
    return [t for t in waiting if t in away], [t for t in waiting if t not in away | straight]


def _leads_away(event: TraceEvent, owned: bool) -> bool:
    return event.type in _LEADS_AWAY or (not owned and event.type == _SENT_ON and event.kind != _FROM_CLIENT)


def ask_server(api: JetStream, cache: StreamCache, topics: list[str]) -> None:
    """Ask for the streams of these topics by an empty message that no stream stores: the account may map or import
    them, so that they reach a stream whose subjects do not match."""
    topics = [topic for topic in topics if topic not in cache.asked]
    cache.asked.update(topics)
    _ask(api, cache, topics)
    topics = [topic for topic in topics if topic in cache.led][:_QUESTIONS]
    _ask(api, cache, topics * (_QUESTIONS // max(1, len(topics))))


def _ask(api: JetStream, cache: StreamCache, topics: list[str]) -> None:
    for first in range(0, len(topics), _ASKED_AT_ONCE):
        some = topics[first : first + _ASKED_AT_ONCE]
        answers = api.connection().requests.request_all([(topic, b"", NOBODY) for topic in some], api.attempt_timeout)
        for topic, name in zip(some, map(_taker, answers), strict=True):
            if name is None:
                continue
            cache.unrouted.discard(topic)
            if name not in cache.streams and name not in cache.info_denied:
                stream_info(api, cache, name)
            cache.filters.add(topic, name)
            cache.led.setdefault(topic, set()).add(name)


def _taker(reply: Frame | MamaError | None) -> str | None:
    """Name of the stream that refuses the message; None = no answer, or another one."""
    if not isinstance(reply, Frame):
        return None
    try:
        answer = answer_of(reply.payload)
    except Unavailable:
        return None
    name = answer.get("stream")
    return name if isinstance(name, str) and "error" in answer else None


def derive_name(topic: str) -> tuple[str, str]:
    """Name and subject of a stream created for ``topic``: its first token and everything below it."""
    first, dot, _ = topic.partition(".")
    name = "".join(c if c.isalnum() or c in "-_" else "_" for c in first).upper() or "MAMA"
    return name, f"{first}.>" if dot else first
