"""Options, declared once.

Each field of :class:`SinkOptions` is one option: its type, default, range and documentation stand in the declaration,
and parsing, nearest-name errors, the redacted ``repr`` and ``docs/options.md`` come from it. The option's name is the
field's name in camel case. Names are case-insensitive, because Spark lower-cases the keys of options.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from .errors import OptionError

#: Keys that Spark itself hands to a data source.
SPARK_KEYS = frozenset({"path", "checkpointlocation", "queryname"})

#: URL schemes and the bridge that serves them.
SCHEMES = {"nats": "nats", "tls": "nats", "memory": "memory"}

Parse = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Declared:
    """What the declaration says of one option beyond its Python type."""

    parse: Parse
    kind: str  #: how the documentation names the type
    doc: str
    group: str
    shown: str  #: how the documentation shows the default
    alias: str | None = None
    secret: bool = False


# --- value types -------------------------------------------------------------------------------------------


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value.strip()


def _names(value: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in value.split(",") if part.strip())
    if not names:
        raise ValueError("must name at least one column")
    return names


def _boolean(value: str) -> bool:
    answer = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
    try:
        return answer[value.strip().lower()]
    except KeyError:
        raise ValueError("must be true or false (also on/off, yes/no, 1/0)") from None


def _integer(lo: int, hi: int = 2**31 - 1) -> Parse:
    def parse(value: str) -> int:
        try:
            number = int(value.strip())
        except ValueError:
            raise ValueError(f"must be a whole number from {lo} to {hi}") from None
        if not lo <= number <= hi:
            raise ValueError(f"must be from {lo} to {hi}")
        return number

    return parse


def _rate(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise ValueError("must be a number of messages a second") from None
    if not 0 < number < 1e12:
        raise ValueError("must be a positive number of messages a second")
    return number


_UNITS = {"": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration(value: str) -> float:
    """Seconds from ``"250"`` (milliseconds), ``"250ms"``, ``"5s"``, ``"2m"``, ``"1h"`` or ``"1d"``.

    :raises ValueError: for anything else, and for zero and negative durations
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d|)", value.strip().lower())
    if match is None or float(match[1]) == 0:
        raise ValueError("must be a positive duration: milliseconds, or a number with ms, s, m, h or d, like 5s")
    return float(match[1]) * _UNITS[match[2]]


def _one_of(*words: str) -> Parse:
    def parse(value: str) -> str:
        word = value.strip().lower()
        if word not in words:
            near = difflib.get_close_matches(word, words, 1)
            raise ValueError(f"must be one of {', '.join(words)}" + (f"; did you mean {near[0]}?" if near else ""))
        return word

    return parse


def _urls(value: str) -> tuple[str, ...]:
    urls = tuple(part.strip() for part in value.split(",") if part.strip())
    if not urls:
        raise ValueError("must name at least one server, like nats://host:4222")
    urls = tuple(url if "://" in url else f"nats://{url}" for url in urls)
    schemes = {url.split("://", 1)[0].lower() for url in urls}
    unknown = schemes - SCHEMES.keys()
    if unknown:
        raise ValueError(f"has the unknown scheme {sorted(unknown)[0]}://; known are {', '.join(sorted(SCHEMES))}")
    if len({SCHEMES[scheme] for scheme in schemes}) > 1:
        raise ValueError("mixes servers of different middlewares")
    for url in urls:
        try:
            port = urlsplit(url).port
        except ValueError:
            raise ValueError(f"has a bad port in {redact_url(url)}") from None
        if port == 0:
            raise ValueError("has port 0, which nobody listens on")
    return urls


def redact_url(url: str) -> str:
    """The URL without what stands before the @: user, password or token."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"***@{host}" if "@" in parts.netloc else host))


# --- declaration -------------------------------------------------------------------------------------------


def option(
    kind: str,
    parse: Parse,
    default: Any,
    group: str,
    doc: str,
    *,
    shown: str | None = None,
    alias: str | None = None,
    secret: bool = False,
) -> Any:
    """One option. ``default`` is the parsed value, ``shown`` how the docs print it (if not the value itself)."""
    text = shown if shown is not None else "" if default is None else str(default).lower()
    return field(default=default, metadata={"option": Declared(parse, kind, doc, group, text, alias, secret)})


_CONNECT, _WHAT, _ACK, _WINDOW, _ERRORS, _LOG = (
    "Connection",
    "Messages",
    "Acknowledgement and identity",
    "Window and retry",
    "Errors",
    "Flight log",
)


@dataclass(frozen=True, repr=False)
class SinkOptions:
    """The options of ``mamapub``; durations are seconds. Make it with :meth:`parse`."""

    url: tuple[str, ...] = option(
        "URLs",
        _urls,
        ("nats://127.0.0.1:4222",),
        _CONNECT,
        "Servers, separated by commas. The scheme picks the bridge: `nats`, `tls` (NATS over TLS), `memory`.",
        shown="nats://127.0.0.1:4222",
        alias="servers",
    )
    credentials: str | None = option(
        "path", _text, None, _CONNECT, "NATS credentials file (JWT and nkey seed), readable on every executor."
    )
    nkey_seed: str | None = option(
        "path", _text, None, _CONNECT, "File with an nkey seed, readable on every executor.", secret=True
    )
    user: str | None = option("text", _text, None, _CONNECT, "User name.")
    password: str | None = option("text", _text, None, _CONNECT, "Password of `user`.", secret=True)
    token: str | None = option("text", _text, None, _CONNECT, "Authentication token.", secret=True)
    tls_ca: str | None = option("path", _text, None, _CONNECT, "CA certificates that the server's is checked against.")
    tls_cert: str | None = option("path", _text, None, _CONNECT, "Client certificate; goes with `tlsKey`.")
    tls_key: str | None = option("path", _text, None, _CONNECT, "Private key of `tlsCert`.")

    topic: str | None = option(
        "text", _text, None, _WHAT, "One topic for all rows; then no `topic` column is needed.", shown="column `topic`"
    )
    topic_prefix: str | None = option("text", _text, None, _WHAT, "Put before every topic, joined with a dot.")
    stream: str | None = option(
        "text",
        _text,
        None,
        _WHAT,
        "JetStream stream that must take all topics. Found from the topics when not given.",
        shown="found from the topics",
    )
    create_stream: bool = option(
        "boolean",
        _boolean,
        False,
        _WHAT,
        "Create a missing stream: file storage, duplicate window of twice `retryDeadline`, fast ingest allowed.",
    )
    ignore_unknown_columns: bool = option(
        "boolean", _boolean, False, _WHAT, "Leave out columns that no rule uses instead of refusing them."
    )

    ack_mode: str = option(
        "`auto`, `message`, `batch`, `none`",
        _one_of("auto", "message", "batch", "none"),
        "auto",
        _ACK,
        "`message`: an acknowledgement with sequence and duplicate flag for each row. `batch`: fast ingest, "
        "acknowledged in runs, no sequences. `none`: fire and forget. `auto`: `batch` where `dedup` is off and "
        "stream and server allow it (and while they do), else `message`.",
    )
    dedup: bool = option(
        "boolean",
        _boolean,
        True,
        _ACK,
        "Send ids that the broker deduplicates on, so that a resend stores nothing twice.",
    )
    id_prefix: str | None = option(
        "text",
        _text,
        None,
        _ACK,
        "First part of default ids. Give a constant one to make ids stable over re-runs of a batch job.",
        shown="query id or run id",
    )
    txn_app_id: str | None = option(
        "text", _text, None, _ACK, "With `txnVersion`: identity of a batch write that may be repeated (Delta's names)."
    )
    txn_version: int | None = option(
        "integer", _integer(0, 2**63 - 1), None, _ACK, "With `txnAppId`: rises with each batch, e.g. the batch id."
    )

    max_in_flight: int = option(
        "integer", _integer(1, 1_000_000), 4096, _WINDOW, "Messages of a partition that wait for an acknowledgement."
    )
    refill_allowed_at: int | None = option(
        "integer",
        _integer(0, 1_000_000),
        None,
        _WINDOW,
        "A full window lets in more when this many or fewer are left.",
        shown="half of `maxInFlight`",
    )
    wait_timeout: float = option(
        "duration", duration, 5.0, _WINDOW, "Wait for the acknowledgement of each send.", shown="5s"
    )
    poll_time: float = option(
        "duration", duration, 0.1, _WINDOW, "Longest wait of the publisher's loop before it looks again.", shown="100"
    )
    hold_pause_time: float = option(
        "duration", duration, 0.1, _WINDOW, "Longest pause while the window is full; settlements end it.", shown="100"
    )
    retry_attempts: int | None = option(
        "integer", _integer(0, 1_000_000), None, _WINDOW, "Resends of one message; 0 = never.", shown="unlimited"
    )
    retry_backoff: float = option(
        "duration", duration, 0.25, _WINDOW, "Wait before the first resend; doubles from there.", shown="250"
    )
    retry_max_backoff: float = option("duration", duration, 3.0, _WINDOW, "Longest wait between resends.", shown="3s")
    retry_deadline: float = option(
        "duration", duration, 30.0, _WINDOW, "No resend later than this after the first send.", shown="30s"
    )
    on_uncertain: str = option(
        "`resend`, `report`",
        _one_of("resend", "report"),
        "resend",
        _WINDOW,
        "What to do with a message whose acknowledgement is lost when `dedup` is off: send it again (it may be stored "
        "twice), or settle it as `timeout`.",
    )
    order: str = option(
        "`none`, `partition`",
        _one_of("none", "partition"),
        "none",
        _WINDOW,
        "`partition`: rows of a partition are stored in their order, also over resends.",
    )
    max_rate_per_partition: float | None = option(
        "number", _rate, None, _WINDOW, "Messages a second of each partition.", shown="unlimited"
    )

    on_error: str = option(
        "`fail`, `deadletter`, `log`",
        _one_of("fail", "deadletter", "log"),
        "fail",
        _ERRORS,
        "When rows failed for good: fail the write when everything else is published, send them to the dead letters, "
        "or leave them to the flight log.",
    )
    error_tolerance: str = option(
        "`data`, `all`",
        _one_of("data", "all"),
        "data",
        _ERRORS,
        "What `deadletter` and `log` cover: what the row itself is guilty of, or outages too.",
    )
    dead_letter_topic: str | None = option(
        "text", _text, None, _ERRORS, "Topic for failed rows, with `Mama-Error-*` headers and id + `-dlq`."
    )
    dead_letter_table: str | None = option("path", _text, None, _ERRORS, "Delta table for failed rows, in full.")

    flight_log: str | None = option(
        "path", _text, None, _LOG, "Delta table that tells what became of every row.", shown="off, with a warning"
    )
    flight_log_level: str = option(
        "`all`, `outcomes`, `errors`",
        _one_of("all", "outcomes", "errors"),
        "outcomes",
        _LOG,
        "`all`: also `published` events. `outcomes`: one terminal event a row. `errors`: only what was not acked.",
    )
    flight_log_columns: tuple[str, ...] = option(
        "columns",
        _names,
        (),
        _LOG,
        "Columns of the DataFrame that go to the flight log, to join with the source.",
        shown="",
    )
    flight_log_payload: str = option(
        "`none`, `failed`, `all`",
        _one_of("none", "failed", "all"),
        "failed",
        _LOG,
        "Whose payload and headers the flight log keeps, to publish them again.",
    )
    storage: tuple[tuple[str, str], ...] = field(default=())

    @property
    def bridge(self) -> str:
        """Name of the bridge that the scheme of the URL picks."""
        return SCHEMES[self.url[0].split("://", 1)[0].lower()]

    @property
    def refill(self) -> int:
        return self.max_in_flight // 2 if self.refill_allowed_at is None else self.refill_allowed_at

    @property
    def storage_options(self) -> dict[str, str]:
        """What ``storage.*`` says, passed to delta-rs as it is."""
        return dict(self.storage)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Check and convert options as Spark hands them over.

        :raises OptionError: names the option, what was expected, and for unknown names the nearest one
        """
        names = _by_name(cls)
        values: dict[str, Any] = {}
        storage: list[tuple[str, str]] = []
        for key, value in given.items():
            low = key.lower()
            if low.startswith("storage."):
                storage.append((low.removeprefix("storage."), value))
                continue
            if low in SPARK_KEYS:
                continue
            if low not in names:
                raise OptionError(f"unknown option {key!r}{nearest(low, spellings(cls))}")
            attribute, declared = names[low]
            if attribute in values:
                raise OptionError(f"option {camel(attribute)} is given twice, as {key!r} and by its other name")
            try:
                values[attribute] = declared.parse(value)
            except ValueError as e:
                got = "" if declared.secret or attribute == "url" else f", got {value!r}"
                raise OptionError(f"option {camel(attribute)} {e}{got}") from None
        options = cls(**values, storage=tuple(sorted(storage)))
        _cross_check(options, values.keys())
        return options

    def __repr__(self) -> str:
        """Only what differs from the defaults; secrets as ``***``."""
        shown = []
        for f in fields(self):
            value = getattr(self, f.name)
            if value == f.default:
                continue
            if f.name == "storage":
                shown += [f"storage.{key}=***" for key, _ in self.storage]
            elif f.name == "url":
                shown.append(f"url={','.join(map(redact_url, self.url))}")
            else:
                secret = f.metadata["option"].secret
                shown.append(f"{camel(f.name)}={'***' if secret else value}")
        return f"{type(self).__name__}({', '.join(shown)})"


def _cross_check(o: SinkOptions, given: Iterable[str]) -> None:
    given = set(given)

    def need(condition: bool, text: str) -> None:
        if not condition:
            raise OptionError(text)

    need(
        o.refill < o.max_in_flight,
        f"option refillAllowedAt must be below maxInFlight ({o.max_in_flight}), got {o.refill}",
    )
    need(o.retry_backoff <= o.retry_max_backoff, "option retryBackoff must not be longer than retryMaxBackoff")
    need((o.txn_app_id is None) == (o.txn_version is None), "options txnAppId and txnVersion go together")
    need((o.tls_cert is None) == (o.tls_key is None), "options tlsCert and tlsKey go together")
    need((o.password is None) or (o.user is not None), "option password needs user")
    ways = [name for name in ("credentials", "nkey_seed", "user", "token") if getattr(o, name) is not None]
    need(len(ways) < 2, f"options {' and '.join(map(camel, ways))} exclude each other: give one way to log in")
    dead = [camel(n) for n in ("dead_letter_topic", "dead_letter_table") if getattr(o, n) is not None]
    if o.on_error == "deadletter":
        need(bool(dead), "option onError=deadletter needs deadLetterTopic or deadLetterTable")
    else:
        need(not dead, f"option {''.join(dead[:1])} needs onError=deadletter, else nothing would ever go there")
    if o.flight_log is None:
        need(o.on_error != "log", "option onError=log needs flightLog: failed rows would vanish without a trace")
        orphans = sorted(n for n in given if n.startswith("flight_log_"))
        need(not orphans, f"option {camel(orphans[0]) if orphans else ''} needs flightLog")
    if o.ack_mode == "none":
        need(o.order == "none", "option order=partition needs acknowledgements, and ackMode=none has none")
    need(
        not (o.order == "partition" and o.ack_mode == "batch" and not o.dedup),
        "option order=partition with ackMode=batch needs dedup=true: after a lost batch only ids make a resend safe",
    )
    need(o.topic is None or not any(c.isspace() for c in o.topic), "option topic must not contain blanks")


# --- names -------------------------------------------------------------------------------------------------


def camel(attribute: str) -> str:
    """Option name of a field: ``max_in_flight`` -> ``maxInFlight``."""
    head, *rest = attribute.split("_")
    return head + "".join(word.capitalize() for word in rest)


def nearest(name: str, known: Iterable[str], label: str = "did you mean") -> str:
    """``"; did you mean X?"`` for the known name nearest to ``name``, or nothing."""
    by_low = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower(), by_low, 1, 0.6)
    return f"; {label} {by_low[near[0]]!r}?" if near else ""


def spellings(cls: type) -> list[str]:
    """All option names that ``cls`` knows, aliases included."""
    return [camel(f.name) for f in fields(cls) if "option" in f.metadata] + [
        f.metadata["option"].alias for f in fields(cls) if "option" in f.metadata and f.metadata["option"].alias
    ]


def _by_name(cls: type) -> dict[str, tuple[str, Declared]]:
    names = {}
    for f in fields(cls):
        declared = f.metadata.get("option")
        if declared is not None:
            names[camel(f.name).lower()] = (f.name, declared)
            if declared.alias:
                names[declared.alias.lower()] = (f.name, declared)
    return names


def markdown() -> str:
    """``docs/options.md``, from the declaration."""
    lines = [
        "# Options of `mamapub`",
        "",
        "Generated from the declaration in `mama_spark/options.py` by `make docs`; `make check` fails when stale.",
        "",
        "Names are case-insensitive. A duration is a number of milliseconds or has a unit: `250`, `5s`, `2m`.",
        "A boolean is `true`/`false`, `on`/`off`, `yes`/`no` or `1`/`0`.",
        "An unknown name is an error that names the nearest one.",
    ]
    group = ""
    for f in fields(SinkOptions):
        declared = f.metadata.get("option")
        if declared is None:
            continue
        if declared.group != group:
            group = declared.group
            lines += ["", f"## {group}", "", "| option | type | default | meaning |", "|---|---|---|---|"]
        alias = f" (or `{declared.alias}`)" if declared.alias else ""
        lines.append(f"| `{camel(f.name)}`{alias} | {declared.kind} | {declared.shown} | {declared.doc} |")
    lines += [
        "| `storage.*` | text | | Passed to delta-rs, for the tables: `storage.aws_endpoint_url`, ... Never logged. |",
        "",
    ]
    return "\n".join(lines)
