"""Withdraws the announced source of a streaming query when the query ends."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from pyspark.sql import SparkSession

from ..contracts.errors import ConfigError
from ..mama.messages.source_records import SourceRecord
from ..options import STREAM_WRITE, SinkOptions
from .option_loading import DiscoveryProperties, read_options
from .plain_errors import add_last_line
from .sink.announcer import source_record, withdraw

#: Seconds.
_PLANNING_TIMEOUT = 120.0


def announced(query: Any, options: Mapping[str, str] | None = None) -> AnnouncedQuery:
    """Withdraw the source of a query (``announce=true``) as soon as the query has ended, for whatever reason::

        with mama_spark.announced(query):       # leaving the block stops a query that still runs
            query.awaitTermination()

        mama_spark.announced(query)             # or: the query goes on, and is withdrawn when it ends

    Nothing happens for a query that is not announced.

    :param query: result of ``writeStream...start()``
    :param options: options of ``mamapub``, where they cannot be read from the query (Spark Connect)
    :raises ConfigError: the options cannot be read
    :raises TypeError: ``query`` is none
    """
    given = _options_of(query) if options is None else dict(options)
    if given is None:
        return AnnouncedQuery(query, None)
    found = read_options(SinkOptions, given, STREAM_WRITE)
    if not found.options.announce:
        return AnnouncedQuery(query, None)
    name = {key.lower(): value for key, value in given.items()}.get("queryname") or query.name
    session = getattr(query, "_session", None) or SparkSession.active()  # Connect's queries know theirs
    app_name, app_id = session.conf.get("spark.app.name", None), session.conf.get("spark.app.id", None)
    record = source_record(
        found.options, str(query.id), streaming=True, query_name=name, app_name=app_name, app_id=app_id
    )
    return AnnouncedQuery(query, (found.options, found.discovery, record))


class AnnouncedQuery:
    """See :func:`announced`, which makes it."""

    def __init__(self, query: Any, source: tuple[SinkOptions, DiscoveryProperties, SourceRecord] | None) -> None:
        self._query, self._source = query, source
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        if source is not None:
            self._thread = threading.Thread(target=self._watch, name="mama-announced", daemon=True)
            self._thread.start()
            atexit.register(self.withdraw)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._query.isActive:
            self._query.stop()
        self.withdraw()
        if error is not None:
            add_last_line(error)

    def withdraw(self) -> None:
        """Withdraw the source now, once; a running query would announce it again with its next micro-batch."""
        with self._lock:  # a second caller waits until it is done
            source, self._source = self._source, None
            if source is not None:
                atexit.unregister(self.withdraw)
                withdraw(*source)

    def _watch(self) -> None:
        with contextlib.suppress(Exception):  # the query failed, or its session is gone
            self._query.awaitTermination()
        self.withdraw()

    def __repr__(self) -> str:
        source = self._source
        return "<AnnouncedQuery, withdrawn>" if source is None else f"<AnnouncedQuery {source[2].name!r}>"


def _options_of(query: Any) -> dict[str, str] | None:
    """Options of the writer of a query; None if it ended before it was planned. Internals of Spark, read only here.

    :raises ConfigError: this kind of query does not have them
    """
    java = getattr(query, "_jsq", None)
    if java is None and not hasattr(query, "awaitTermination"):
        raise TypeError(f"announced() takes a streaming query, what start() returns, and not {query!r}")
    if java is None:
        raise ConfigError("Spark Connect has no options of a query: pass them, announced(query, options)")
    from py4j.protocol import Py4JError, Py4JJavaError

    until = time.monotonic() + _PLANNING_TIMEOUT
    while True:
        try:
            pairs, found = java.streamingQuery().logicalPlan().writeOptions().iterator(), {}
            while pairs.hasNext():
                pair = pairs.next()
                found[str(pair._1())] = str(pair._2())
            return found
        except Py4JJavaError as e:  # until the query's own thread has made the plan
            if not query.isActive:
                return None
            if time.monotonic() > until:
                raise ConfigError(f"the query has no plan after {_PLANNING_TIMEOUT:g} s") from e
            time.sleep(0.05)
        except Py4JError as e:
            raise ConfigError(
                "the options of a query cannot be read from this version of Spark: pass them, announced(query, options)"
            ) from e
