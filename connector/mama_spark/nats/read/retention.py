"""Checks whether a stream can be read as a log, and which limits may remove records before they are read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.record_log import Removal
from mama_spark.contracts.served_log import LogSettings

from ..jetstream.answers import StreamInfo
from ..protocol.direct_get import micros

_UNITS = ((86400 * 10**9, "d"), (3600 * 10**9, "h"), (60 * 10**9, "min"), (10**9, "s"), (10**6, "ms"))
_LIMITS = {
    "max_msgs_per_subject": "keeps the last {} records of each subject (max_msgs_per_subject)",
    "max_msgs": "keeps the last {} records (max_msgs)",
    "max_bytes": "keeps the last {} bytes (max_bytes)",
}
_FLAGS = {
    "allow_rollup_hdrs": "lets a record remove those before it (allow_rollup_hdrs)",
    "allow_msg_ttl": "removes records that carry a Nats-TTL when it is over (allow_msg_ttl)",
}


def require_log(name: str, retention: str) -> None:
    """Check the retention. ConfigError: the stream drops records that its consumers have taken."""
    if retention != "limits":
        raise ConfigError(
            f"stream {name!r} has the retention {retention!r}: it drops what its consumers have taken, so it cannot be "
            "read as a log, and what is stored cannot be told from what was never stored. Use a stream with the "
            f"retention limits, which {name!r} may source"
        )


def require_newest(info: StreamInfo) -> None:
    """Check that a stream keeps the last message of each subject, under that subject. ConfigError: it does not."""
    require_log(info.name, info.retention)
    found = [
        text.format(value)
        for key, text in _LIMITS.items()
        if key != "max_msgs_per_subject" and (value := info.limit(key)) is not None and _discards_old(info.config, key)
    ]
    if info.config.get("subject_transform"):
        found.append("stores messages under other subjects (subject_transform)")
    if info.no_ack:
        found.append("acknowledges nothing (no_ack)")
    if found:
        raise ConfigError(
            f"stream {info.name!r} {' and '.join(found)}, so the last message of each subject is not found there: "
            "change it, or name another stream"
        )


def warnings(info: StreamInfo) -> list[str]:
    """One sentence for each limit by which a stream may remove records before they are read."""
    found = []
    for key, text in _LIMITS.items():
        if (value := info.limit(key)) is not None and _discards_old(info.config, key):
            found.append(text.format(value))
    if (age := info.limit("max_age")) is not None:
        found.append(f"removes records after {_duration(age)} (max_age)")
    found += [text for flag, text in _FLAGS.items() if info.config.get(flag)]
    return [f"stream {info.name!r} {text}" for text in found]


def removal(info: StreamInfo) -> Removal:
    """The records that the limits of a stream remove. A marker tells of an expired record."""
    each, age = info.limit("max_msgs_per_subject"), info.limit("max_age")
    discards = {key for key in _LIMITS if info.limit(key) is not None and _discards_old(info.config, key)}
    marked = age is None or info.limit("subject_delete_marker_ttl") is not None
    since = 0 if marked else micros(info.now) - (age or 0) // 1_000
    return Removal(
        between="max_msgs_per_subject" in discards or any(info.config.get(flag) for flag in _FLAGS),
        replaced_since=None if each is None or discards & {"max_msgs", "max_bytes"} else since,
        all_but_last=each == 1 and info.replicas < 2,  # a replica that is behind has replaced ones, too
    )


def settings_of(info: StreamInfo) -> LogSettings:
    return LogSettings(
        info.subjects, (info.limit("max_age") or 0) / 1e9 or None, info.limit("max_bytes"), info.limit("max_msgs"),
        info.limit("max_msgs_per_subject"), info.duplicate_window, info.replicas, str(info.config.get("storage")),
    )  # fmt: skip


def config_of(name: str, settings: LogSettings) -> dict[str, Any]:
    age = settings.max_age or 0
    return {
        "name": name,
        "subjects": list(settings.topics),
        "storage": settings.storage,
        "num_replicas": settings.replicas,
        "max_age": int(age * 1e9),
        "max_bytes": settings.max_size or -1,
        "max_msgs": settings.max_records or -1,
        "max_msgs_per_subject": settings.max_per_topic or -1,
        "duplicate_window": int(min(settings.duplicate_window, age or settings.duplicate_window) * 1e9),
        "discard": "old",
    }


def _discards_old(config: Mapping[str, Any], key: str) -> bool:
    """Whether this limit removes the oldest record, instead of rejecting the new one."""
    if key == "max_msgs_per_subject" and not config.get("discard_new_per_subject"):
        return True
    return config.get("discard") != "new"


def _duration(ns: int) -> str:
    size, unit = next(((size, unit) for size, unit in _UNITS if ns >= size), (1, "ns"))
    return f"{ns / size:g} {unit}"
