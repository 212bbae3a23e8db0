"""Answers of JetStream (NATS ADR-1): streams and consumers, and errors with their codes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.record_log import Bounds

from ..protocol.direct_get import micros

NO_STREAM, NO_CONSUMER, NO_MESSAGE = 10059, 10014, 10037
NO_SEQUENCE = 10043  #: to delete
TOO_MANY_CONSUMERS = 10026  #: the stream or the account has as many as it may
#: A stream of another configuration has the name, or some of the subjects.
NAME_TAKEN, OVERLAP = 10058, 10065
#: Stream name in use; also while the files of a deleted stream of this name are being removed.
CREATE_FAILED = 10049
#: JetStream is off for the account, or for the server.
OFF = (10039, 10076)
FAST_SINCE = (2, 14)  #: first version of the server with fast ingest


class ApiError(ConfigError):
    """Permanent error of the server, with its ``err_code`` and text: the same request would get it again."""

    def __init__(self, text: str, code: int, description: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.description = description or text


class ApiForbidden(ConfigError):
    """The permissions of the user do not allow the request."""


def answer_of(data: bytes) -> dict[str, Any]:
    """The JSON object of an answer; its ``error``, if any, has numeric codes. Anything else: :class:`Unavailable`."""
    try:
        answer = orjson.loads(data)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict) or not _is_error(answer.get("error")):
        raise Unavailable(f"not an answer of JetStream: {data[:100]!r}")
    return answer


def _is_error(error: object) -> bool:
    return error is None or (
        isinstance(error, dict) and all(isinstance(error.get(code, 0), int) for code in ("code", "err_code"))
    )


@dataclass(frozen=True, slots=True)
class AnsweredError:
    """The error of an answer: ``status`` as of HTTP, ``code`` its ``err_code``."""

    status: int
    code: int
    text: str

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> AnsweredError | None:
        """The error; None: it succeeded."""
        error = answer.get("error")
        if error is None:
            return None
        return cls(int(error.get("code", 0)), int(error.get("err_code", 0)), str(error.get("description")))


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """A step of what a server would do with a message (NATS ADR-41).

    :ivar kind: kind of the connection that it comes from, or goes to: 0 = a client's; -1: there is none
    :ivar type: ``in``: it came, ``sm`` and ``si``: its subject changes, ``eg``: it goes on, and others
    :ivar failed: the message goes no further
    """

    kind: int
    type: str
    subject: str
    failed: bool

    @classmethod
    def all_of(cls, data: bytes) -> list[TraceEvent]:
        """The events of one server, first the arrival of the message; empty where the answer cannot be read."""
        try:
            events = orjson.loads(data)["events"]
            return [cls(e.get("kind", -1), e["type"], e.get("subj", ""), "error" in e) for e in events]
        except (ValueError, KeyError, TypeError, AttributeError):  # of JSON, too
            return []


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream: its configuration and its state.

    :ivar config: in the words of the API
    :ivar created: text of the server, which tells it from another stream of the same name
    :ivar deleted: number of deleted sequences from ``first`` to ``last``, the sequences of the first message and of the
        last one ever stored; ``deleted_sequences``: these, if requested
    :ivar leader: leader of its replicas, as the one that answered knows; ``led``: it is the leader itself
    :ivar sourced: sequence up to which each stream was sourced, by its name
    :ivar leads_since: its leader, and ``now``: the time of the server when it answered, RFC 3339
    """

    config: dict[str, Any]
    created: str
    messages: int
    size: int
    first: int
    last: int
    last_time: str
    topics: int
    deleted: int
    deleted_sequences: Sequence[int]
    consumers: int
    leader: str | None
    led: bool
    leads_since: str
    sourced: Mapping[str, int]
    now: str

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> StreamInfo:
        """Read an answer of the JetStream API, or an element of a list."""
        state, cluster = answer.get("state") or {}, answer.get("cluster") or {}
        leader, others = cluster.get("leader"), [one.get("name") for one in cluster.get("replicas") or ()]
        return cls(
            answer["config"],
            str(answer.get("created", "")),
            int(state.get("messages", 0)),
            int(state.get("bytes", 0)),
            int(state.get("first_seq", 0)),
            int(state.get("last_seq", 0)),
            str(state.get("last_ts", "")),
            int(state.get("num_subjects", 0)),
            int(state.get("num_deleted", 0)),
            state.get("deleted") or (),
            int(state.get("consumer_count", 0)),
            leader,
            leader not in others and (bool(leader) or not cluster),
            str(cluster.get("leader_since", "")),
            {str(source["name"]): int(source.get("seq", 0)) for source in answer.get("sources") or ()},
            str(answer.get("ts", "")),
        )

    @property
    def name(self) -> str:
        return str(self.config["name"])

    @property
    def subjects(self) -> tuple[str, ...]:
        return tuple(self.config.get("subjects") or ())

    @property
    def metadata(self) -> Mapping[str, str]:
        return self.config.get("metadata") or {}

    @property
    def no_ack(self) -> bool:
        return bool(self.config.get("no_ack"))

    @property
    def batched(self) -> bool:
        """Whether fast ingest is allowed."""
        return bool(self.config.get("allow_batched"))

    @property
    def duplicate_window(self) -> float:
        """Seconds for which ids are remembered."""
        return int(self.config.get("duplicate_window") or 0) / 1e9

    @property
    def led_for(self) -> float:
        """Seconds since its leader was elected; 0 = unknown."""
        since = micros(self.leads_since)
        return (micros(self.now) - since) / 1e6 if since else 0.0

    @property
    def replicas(self) -> int:
        return int(self.config.get("num_replicas") or 1)

    @property
    def retention(self) -> str:
        return str(self.config.get("retention", "limits"))

    @property
    def bounds(self) -> Bounds:
        """The identity is the creation time of the stream."""
        first = self.first if self.messages else self.last + 1
        return Bounds(first, self.last, self.created, micros(self.last_time) if first <= self.last else None)

    def idle_limit(self, seconds: float) -> float:
        """Seconds that a consumer may be idle, at most what the stream allows."""
        allowed = (self.config.get("consumer_limits") or {}).get("inactive_threshold")
        return min(seconds, allowed / 1e9) if allowed else seconds

    def limit(self, name: str) -> int | None:
        number = int(self.config.get(name) or 0)
        return number if number > 0 else None


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer: its configuration and progress.

    :ivar config: in the words of the API
    :ivar pending: number of undelivered messages; ``unacknowledged``: of delivered ones without an acknowledgement
    :ivar waiting: number of open pull requests
    :ivar delivered: its own sequence of the last delivery; ``position``: that of the stream
    """

    name: str
    config: Mapping[str, Any]
    pending: int
    unacknowledged: int
    waiting: int
    delivered: int
    position: int

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> ConsumerInfo:
        delivered = answer.get("delivered") or {}
        return cls(
            str(answer["name"]),
            answer.get("config") or {},
            int(answer.get("num_pending", 0)),
            int(answer.get("num_ack_pending", 0)),
            int(answer.get("num_waiting", 0)),
            int(delivered.get("consumer_seq", 0)),
            int(delivered.get("stream_seq", 0)),
        )

    @property
    def filters(self) -> list[str]:
        """Subjects that it delivers; none = all."""
        one = self.config.get("filter_subject")
        return list(self.config.get("filter_subjects") or ([one] if one else []))

    @property
    def most_requested(self) -> int | None:
        """Messages that a pull request may ask for (``max_request_batch`` of the server); None = any number."""
        return self.config.get("max_batch") or None
