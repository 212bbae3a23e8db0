"""What the broker's configuration may say for a durable stream. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from mama_spark.errors import ConfigError

_CHOICES = ("normal", "full")


@dataclass(frozen=True, slots=True)
class DurableSettings:
    """
    :ivar folder: where the stores are, on a local disk; one file a stream, named after it
    :ivar max_age: seconds for which a message is kept; None, here and below, = no limit
    :ivar max_octets: of all messages together: sender, subject, content, id and headers
    :ivar max_messages: how many are kept. Beyond a limit the oldest go, and the newest always stays
    :ivar dedup_window: seconds in which an id is stored once; 0 = ids are not looked at
    :ivar dedup_ids: as many ids are remembered at most, about 270 octets of memory each
    :ivar max_running: subjects where a message with a time to live may run (see
        :mod:`mama_spark.malamute.protocol.ttl`)
    :ivar synchronous: ``normal``: what is acknowledged survives the death of the broker; a loss of power may take the
        last moments. ``full``: it is on the disk, at the price of waiting for it once a batch
    """

    folder: str
    max_age: float | None = None
    max_octets: int | None = None
    max_messages: int | None = None
    dedup_window: float = 120.0
    dedup_ids: int = 1_000_000
    max_running: int = 100_000
    synchronous: str = "normal"

    @classmethod
    def parse(cls, stream: bytes, settings: Mapping[str, Any]) -> DurableSettings:
        """:raises ConfigError: a setting is unknown, missing or out of range; the text names it"""
        where = f"durable stream {stream.decode('utf-8', 'replace')!r}"
        names = [field.name for field in fields(cls)]
        for name in settings:
            if name not in names:
                near = get_close_matches(name, names, 1)
                hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}"
                raise ConfigError(f"{where}: no setting {name!r}{hint}")
        if not isinstance(settings.get("folder"), str) or not settings["folder"]:
            raise ConfigError(f"{where}: the setting folder is missing")
        made = cls(**settings)
        for name in ("max_age", "max_octets", "max_messages", "dedup_window", "dedup_ids", "max_running"):
            made._check_number(where, name)
        if made.synchronous not in _CHOICES:
            raise ConfigError(f"{where}: synchronous is {' or '.join(_CHOICES)}, not {made.synchronous!r}")
        return made

    def _check_number(self, where: str, name: str) -> None:
        value = getattr(self, name)
        limit = name in ("max_age", "max_octets", "max_messages")
        if limit and value is None:
            return
        seconds = name in ("max_age", "dedup_window")
        kinds = (int, float) if seconds else (int,)
        if isinstance(value, bool) or not isinstance(value, kinds) or not (0 if not limit else 1e-6) <= value <= 1e18:
            what = f"{'seconds' if seconds else 'a whole number'}{' above 0' if limit else ', 0 or more'}"
            raise ConfigError(f"{where}: {name} must be {what}, not {value!r}")
