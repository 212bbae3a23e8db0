"""The durable streams of a broker as logs: :mod:`mama_spark.record_log` over one leased connection."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Self

from mama_spark.errors import ClientClosed, ConfigError, Unavailable
from mama_spark.malamute.client.calls import CallFailed
from mama_spark.malamute.client.connection import ClientConnection
from mama_spark.malamute.client.log_query_client import PendingQuery
from mama_spark.malamute.client.states import ClientState
from mama_spark.malamute.protocol.commands import BadFrame, StatusCode
from mama_spark.malamute.protocol.extensions import Feature
from mama_spark.malamute.protocol.log_query import LogQuery, LogQueryAnswer, Op, parse_texts

from .pool import POOL, PooledConnection
from .settings import MalamuteSettings
from .stream_log import MalamuteLog

#: What is announced: no subscriptions, so no credit.
FEATURES = Feature.LOG | Feature.SEQUENCE | Feature.HEADERS
#: Messages that ZeroMQ may hold: what was fetched is counted in octets.
_HIGH_WATER = 10_000
#: Streams of the broker's own begin so; topics do not find them.
_OWN = "_MAMA_"
_OVER = (ClientState.CLOSED, ClientState.FAILED)


class MalamuteLogs:
    """See :class:`~mama_spark.record_log.RecordLogBridge`.

    :param settings: with a stream, there is no other log
    :param timeout: seconds that nobody may answer before :class:`~mama_spark.errors.Unavailable`
    :param pattern: a regular expression for subjects, of :mod:`mama_spark.malamute.protocol.patterns`: what is read
        when no topics are given
    """

    def __init__(self, settings: MalamuteSettings, timeout: float = 30.0, pattern: str | None = None) -> None:
        link = replace(settings.link, features=FEATURES, high_water=_HIGH_WATER)
        self.settings, self.timeout, self.pattern = replace(settings, link=link), timeout, pattern
        self._connection: PooledConnection | None = None

    def __repr__(self) -> str:
        state = "closed" if self._connection is None else self.link.machine.state.value
        return f"<MalamuteLogs {', '.join(self.settings.link.urls)}, {state}>"

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open(self) -> None:
        """See :class:`~mama_spark.record_log.RecordLogBridge`.

        :raises ConfigError: the broker is none of ours: it keeps nothing that could be read
        """
        try:
            connection = POOL.lease(self.settings.link, min(self.timeout, self.settings.connect_timeout))
        except CallFailed as e:
            raise ConfigError(f"{self.settings.link}: {e}") from e
        link = connection.link
        if Feature.LOG not in link.machine.features:
            text = not_implemented(link)
            link.close(0.0)
            raise ConfigError(text)
        self._connection = connection

    def close(self) -> None:
        """See :class:`~mama_spark.record_log.RecordLogBridge`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            POOL.give_back(connection)

    # --- logs ------------------------------------------------------------------------------------------------------

    def names(self, topics: Sequence[str]) -> list[str]:
        """See :class:`~mama_spark.record_log.RecordLogBridge`. A stream takes every topic, so it is the one that the
        settings name, or all that are stored, without the broker's own where topics are given."""
        named = self.settings.stream
        if named is not None:
            return [named] if topics or named in self._all() else []
        return [name for name in self._all() if not (topics and name.startswith(_OWN))]

    def _all(self) -> list[str]:
        found: list[str] = []
        after, more = b"", True
        while more:
            answer = self.ask(LogQuery(Op.NAMES, 0, text=after))
            page = parse_texts(answer.body[1:])
            more = answer.body[:1] == b"\1" and bool(page)
            after = page[-1] if page else b""
            for name in page:
                with suppress(UnicodeDecodeError):
                    found.append(name.decode())
        return found

    def log(self, name: str) -> MalamuteLog:
        """See :class:`~mama_spark.record_log.RecordLogBridge`."""
        return MalamuteLog(self, name)

    # --- questions -------------------------------------------------------------------------------------------------

    @property
    def link(self) -> ClientConnection:
        """:raises ClientClosed: not open"""
        if self._connection is None:
            raise ClientClosed("the log bridge is not open")
        return self._connection.link

    def ask(self, question: LogQuery) -> LogQueryAnswer:
        """The answer, over another connection if the first is lost meanwhile: asking twice does no harm.

        :raises ConfigError: the user must change something; the text says what
        :raises Unavailable: nobody answers
        """
        until = time.monotonic() + self.timeout
        while True:
            try:
                return self.wait(self.send(question, until))
            except Unavailable as e:
                self.reconnected(until, e)

    def send(self, question: LogQuery, until: float) -> PendingQuery:
        """Ask, and do not wait.

        :raises Unavailable: not connected now
        """
        link = self.link
        with link.changed:
            if link.connected and Feature.LOG not in link.machine.features:
                raise ConfigError(not_implemented(link))
            try:
                asked = link.machine.ask(question, until)
            except BadFrame as e:
                raise ConfigError(f"{_where(question, link)}: {e}") from e
            except Unavailable as e:
                raise Unavailable(link.explain("asking", str(e))) from e
        link.wake()
        return asked

    def wait(self, asked: PendingQuery) -> LogQueryAnswer:
        """The answer to what was sent.

        :raises MamaError: why there is none
        """
        link = self.link
        with link.changed:
            link.changed.wait_for(lambda: asked.done or link.fatal is not None)
            error = asked.error if asked.done else link.fatal
        if isinstance(error, Unavailable):
            raise Unavailable(link.explain("asking", str(error))) from error
        if error is not None:
            raise error
        answer = asked.answer
        assert answer is not None
        if answer.code == StatusCode.SUCCESS:
            return answer
        reason = answer.reason.decode("utf-8", "replace")
        text = f"{_where(asked.query, link)}: {reason}"
        if answer.code == StatusCode.INTERNAL_ERROR:
            raise Unavailable(text)
        raise ConfigError(f"NOT_IMPLEMENTED: {text}" if answer.code == StatusCode.NOT_IMPLEMENTED else text)

    def reconnected(self, until: float, error: Unavailable) -> None:
        """Wait until there is a connection again.

        :raises Unavailable: ``error``, when it is too late
        """
        link = self.link
        with link.changed:
            link.changed.wait_for(
                lambda: link.connected or link.fatal is not None or link.machine.state in _OVER,
                max(0.0, until - time.monotonic()),
            )
            if link.fatal is not None:
                raise link.fatal from error
            there = link.connected
        if not there or time.monotonic() > until:
            raise error
        time.sleep(min(_PAUSE, max(0.0, until - time.monotonic())))


#: Seconds before something is asked again that failed although there is a connection.
_PAUSE = 0.05


def not_implemented(link: ClientConnection) -> str:
    return (
        f"NOT_IMPLEMENTED: the broker at {link.endpoint} keeps nothing that could be read back. Reading needs mama "
        "broker with a durable stream; other brokers of the protocol forget a message once it is delivered"
    )


def _where(question: LogQuery, link: ClientConnection) -> str:
    name = question.stream.decode("utf-8", "replace")
    return f"stream {name!r} at {link.endpoint}" if question.op is not Op.NAMES else link.endpoint
