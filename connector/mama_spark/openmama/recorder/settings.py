"""Settings of a recorder of OpenMAMA messages: the table ``[recorder]`` of its configuration file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.headers import MAX_PACK_ROWS
from mama_spark.mama.properties import TRANSPORT_KEYS, Properties
from mama_spark.openmama.wire.dictionary import DICTIONARY_SOURCE
from mama_spark.openmama.wire.frames import why_unsendable
from mama_spark.openmama.wire.records import PREFIX
from mama_spark.openmama.wire.settings import PeerSettings, property_urls
from mama_spark.options import camel, duration
from mama_spark.options.declare import option
from mama_spark.options.document import FileSection
from mama_spark.options.tables import parse_table
from mama_spark.options.values import integer, plain_name, some_names, text
from mama_spark.recording.recorder import DRAIN, GROUP, METRICS, REPORT


def _symbols(value: Any) -> tuple[tuple[str, str], ...]:
    found = []
    for name in some_names(value):
        source, dot, symbol = name.partition(".")
        if not (source and dot and symbol):
            raise ValueError("must be SOURCE.SYMBOL, such as OM.IBM")
        found.append((source, symbol))
    return tuple(found)


@dataclass(frozen=True)
class OpenMamaRecorderSettings:
    """Settings of a recorder, made by :meth:`of` from a table. Durations are in seconds."""

    middleware: ClassVar[str] = "openmama"
    peer: PeerSettings
    topics: tuple[str, ...] = option(
        "names", some_names, (), GROUP,
        "Topics: `OM.IBM`; `OM.>`: all that begin so.", shown="none",
    )  # fmt: skip
    symbols: tuple[tuple[str, str], ...] = option(
        "names", _symbols, (), GROUP,
        "Market data, SOURCE.SYMBOL, with an image (`oz`).", shown="none",
    )  # fmt: skip
    dictionary: str = option(
        "name", text, "auto", GROUP,
        "Source that the data dictionary is fetched from (`oz`); `off`: none; `auto`: the sources of the symbols, and "
        f"{DICTIONARY_SOURCE}, whichever serves one.",
    )  # fmt: skip
    name: str = option("name", plain_name, "recorder", GROUP, "Name of this recorder, unique in its log.")
    prefix: str = option("name", plain_name, PREFIX, GROUP, "First part of the topics in the log.")
    buffer: int = option(
        "integer", integer(1), 200_000, GROUP,
        "Messages kept while the log is away; beyond, the network is not read, and publishers hold or drop.",
    )  # fmt: skip
    request_timeout: float = option(
        "duration", duration, 10.0, GROUP, "Longest wait for an answer to a subscription; three attempts.", shown="10s"
    )
    pack_max_rows: int = option(
        "integer", integer(1, MAX_PACK_ROWS), 1, GROUP,
        "Messages of one topic in a packed record.",
    )  # fmt: skip
    pack_max_bytes: int = option("integer", integer(1), 65_536, GROUP, "Most bytes of a packed record.")
    pack_delay: float = option(
        "duration", duration, 0.1, GROUP, "Longest wait of a message for others of its topic.", shown="100ms"
    )
    look_back: int = option(
        "integer", integer(0), 200_000, GROUP,
        "Records at the end of the log in which the last numbers are looked up; 0: none.",
    )  # fmt: skip
    report: float = REPORT
    metrics: str | None = METRICS
    drain: float = DRAIN

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> OpenMamaRecorderSettings:
        """Make settings from the table of a file.

        :raises ConfigError: a key is unknown or missing, or a value is invalid; the message names the key
        """
        rest = {key: value for key, value in given.items() if key not in ("url", *TRANSPORT_KEYS)}
        url = _url(given)
        values = parse_table(cls, rest, "[recorder]", camel)
        if url is None:
            raise ConfigError("[recorder] the key url is missing; give oz://host:5756 of the name server")
        urls = [part.strip() for part in url.split(",")] if isinstance(url, str) else list(url)
        peer = replace(PeerSettings.from_urls(urls, receiver=True), program="mama-record")
        settings = cls(peer, **values)
        if not settings.topics and not settings.symbols:
            raise ConfigError("[recorder] names nothing to record: give topics (OM.IBM, OM.>) or symbols (OM.IBM)")
        for topic in settings.exact_topics:
            if (fault := why_unsendable(topic)) is not None:
                raise ConfigError(f"[recorder] {fault}")
        return settings

    @property
    def subject(self) -> tuple[Sequence[str], str, str]:
        """The recorded names, their kind, and the network, as text."""
        names = [*self.topics, *(".".join(symbol) for symbol in self.symbols)]
        addresses = self.peer.naming or [endpoint.address for endpoint in self.peer.incoming]
        return names, "topics", f"{self.peer.framing.name} {', '.join(addresses)}"

    @property
    def labels(self) -> dict[str, str]:
        return {"recorder": self.name, "network": self.peer.framing.name}

    @property
    def exact_topics(self) -> list[str]:
        mine = [topic for topic in self.topics if not topic.endswith(">")]
        return list(dict.fromkeys((*mine, *(f"{source}.{symbol}" for source, symbol in self.symbols))))

    @property
    def topic_prefixes(self) -> list[str]:
        """Prefixes of topics; empty: all."""
        return [topic.removesuffix(">") for topic in self.topics if topic.endswith(">")]

    @property
    def may_request(self) -> bool:
        """Whether the publishers of the network survive requests."""
        return self.peer.framing.answers_requests or self.peer.allow_requests

    @property
    def dictionary_sources(self) -> list[str]:
        """Sources that may serve the dictionary, in the order in which they are asked."""
        if self.dictionary == "off" or not self.may_request:
            return []
        if self.dictionary != "auto":
            return [self.dictionary]
        return list(dict.fromkeys((*(source for source, _ in self.symbols), DICTIONARY_SOURCE)))


def _url(given: Mapping[str, Any]) -> Any:
    """The URL, or the URLs of the transport of a ``mama.properties`` file that the table names; None: neither.

    :raises ConfigError: the file cannot be read, or only a part is given
    """
    named = {key: given[key] for key in TRANSPORT_KEYS if key in given}
    if not named:
        return given.get("url")
    if "url" in given or not {"properties", "transport"} <= named.keys():
        raise ConfigError("properties and transport go together, and instead of url: where is the network to record?")
    properties = Properties.load(named["properties"])
    return property_urls(properties, named["transport"], named.get("framing"), receiver=True)


def documents() -> list[FileSection]:
    """The configuration file for ``mama docs``."""
    tables = (("`[recorder]`, with `url` of the name server", OpenMamaRecorderSettings),)
    return [FileSection("Recorder of OpenMAMA: `mama record --conf-file conf/openmama-record.toml`", tables, camel)]
