"""Reads ``mama.properties`` as OpenMAMA does, and selects the properties of one transport. Pure.

The format: one property per line; ``#`` or ``!`` at the line's start is a comment; a key ends at a blank, ``:`` or
``=``; a backslash at the line's end continues it, leading blanks of the next line dropped; ``\\t \\n \\r \\\\`` and a
backslash before any other character are escapes. Blanks inside a value are dropped (escape them to keep them),
``$(VAR)`` and ``${VAR}`` come from the environment (an unset one stays as it is), the last of two equal keys wins, and
an empty value reads as unset.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

from ..contracts.errors import ConfigError, OptionError
from ..contracts.middlewares import find
from ..options.values import nearest
from ..registry import part
from .messages.source_records import DEFAULT_FIELDS, SourceFields

FILE = "mama.properties"
#: Settings of a recorder that name a transport of a file, instead of a URL.
TRANSPORT_KEYS = ("properties", "transport", "framing")
SUPPORTED = "sourcediscovery.supported"  #: of a transport (SD-49)
TRUE = frozenset({"1", "y", "Y", "t", "T", "true", "True", "TRUE", "yes", "Yes", "YES"})

_BLANKS = " \t\f\v"
_VARIABLE = re.compile(r"\$\(([^)]*)\)|\$\{([^}]*)\}")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r"}
_ALIASES = MappingProxyType({"servers": "url"})


class _Value(NamedTuple):
    text: str
    line: int


class Properties(Mapping[str, str]):
    """The values of a file by key, without empty ones."""

    def __init__(self, values: Mapping[str, _Value], path: str) -> None:
        self._values = values
        self.path = path  #: for error texts

    @classmethod
    def parse(cls, text: str, environ: Mapping[str, str], path: str = FILE) -> Self:
        """Parse the text of a file. Any text is valid in this format."""
        values: dict[str, _Value] = {}
        for number, line in _lines(text):
            key, rest = _token(line, f"{_BLANKS}:=")
            if not key:
                continue
            rest = rest.lstrip(_BLANKS)
            if rest[:1] in (":", "="):
                rest = rest[1:]
            values[key] = _Value(_expanded(_token(rest, "")[0], environ), number)
        return cls({key: value for key, value in values.items() if value.text}, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> Self:
        """Read a file.

        :param environ: variables; None = the environment of the process
        :raises ConfigError: names the file if it cannot be read
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as e:
            raise ConfigError(f"{os.fspath(path)}: {getattr(e, 'strerror', None) or e}") from e
        return cls.parse(text, os.environ if environ is None else environ, os.fspath(path))

    @classmethod
    def find(cls, wombat_path: str | None, environ: Mapping[str, str] | None = None) -> Self:
        """The first ``mama.properties`` along a list of folders; later ones are not read.

        :param wombat_path: the value of ``WOMBAT_PATH``
        :raises ConfigError: none was found; names the folders that were searched
        """
        folders = [part for part in (wombat_path or "").replace('"', "").split(os.pathsep) if part]
        if not folders:
            raise ConfigError(f"no {FILE}: WOMBAT_PATH is not set; give its path as option properties")
        for folder in folders:
            if (path := Path(folder, FILE)).is_file():
                return cls.load(path, environ)
        raise ConfigError(f"no {FILE} in the folders of WOMBAT_PATH: {', '.join(folders)}")

    def where(self, key: str) -> str:
        """File and line of a key, for messages."""
        value = self._values.get(key)
        return self.path if value is None else f"{self.path}:{value.line}"

    def __getitem__(self, key: str) -> str:
        return self._values[key].text

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Logical lines with the number of their first physical line, without comments and empty lines."""
    whole, first = "", 0
    for number, physical in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        line = physical.lstrip(_BLANKS)
        if not whole:
            if not line or line[0] in "#!":
                continue
            first = number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            whole += line[:-1]
            continue
        yield first, whole + line
        whole = ""
    if whole:
        yield first, whole


def _token(line: str, stops: str) -> tuple[str, str]:
    """The text before the first of ``stops``, escapes resolved and blanks dropped, and the rest of the line."""
    made, at = [], 0
    while at < len(line) and line[at] not in stops:
        char = line[at]
        if char == "\\" and at + 1 < len(line):
            at += 1
            made.append(_ESCAPES.get(line[at], line[at]))
        elif char not in _BLANKS:
            made.append(char)
        at += 1
    return "".join(made), line[at:]


def _expanded(value: str, environ: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: environ.get(match[1] or match[2] or "", match[0]), value)


# --- transports ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TransportProperties:
    properties: Properties
    bridge: str
    name: str

    @property
    def prefixes(self) -> tuple[str, str]:
        """The key prefixes of its properties, the more specific first."""
        return f"mama.{self.bridge}.transport.{self.name}.", f"mama.transport.{self.name}."

    def get(self, prop: str, default: str | None = None) -> str | None:
        """``mama.<bridge>.transport.<name>.<prop>``, else ``mama.transport.<name>.<prop>``, else ``default``."""
        for prefix in self.prefixes:
            if (value := self.properties.get(prefix + prop)) is not None:
                return value
        return default

    @property
    def supported_key(self) -> str:
        """Full name of the property that switches source discovery on."""
        return self.prefixes[0] + SUPPORTED

    @property
    def discovery_supported(self) -> bool:
        """Whether source discovery is switched on (SD-49); missing = False."""
        return self.get(SUPPORTED) in TRUE

    def below(self) -> dict[str, str]:
        """All its properties, by key without the prefix."""
        general, special = (
            {key.removeprefix(p): value for key, value in self.properties.items() if key.startswith(p)}
            for p in reversed(self.prefixes)
        )
        return general | special


@dataclass(frozen=True, slots=True)
class Expanded:
    """Options completed from the properties file.

    :ivar options: options given in Spark, and those of the transport
    :ivar transport: properties of the transport; None = no transport was named
    :ivar where: file and key prefix, for error texts
    :ivar shared: names, in lower case, of the options that the file adds for all uses of the transport
    """

    options: dict[str, str]
    transport: TransportProperties | None = None
    fields: SourceFields = field(default=DEFAULT_FIELDS)
    where: str = "options"
    shared: frozenset[str] = frozenset()

    @property
    def discovery_supported(self) -> bool | None:
        """The transport's property; None: the bridge's capability applies."""
        return None if self.transport is None else self.transport.discovery_supported

    @property
    def supported_key(self) -> str:
        """Name of the transport's property; empty without a transport."""
        return "" if self.transport is None else self.transport.supported_key


def expand(given: Mapping[str, str], known: Iterable[str], environ: Mapping[str, str]) -> Expanded:
    """Add the properties of the transport that the options name.

    Options ``transport`` (a name), ``properties`` (path of a file; without it WOMBAT_PATH is searched) and ``bridge``
    (default ``nats``). The file may set every option in ``known`` as ``mama.<bridge>.transport.<name>.<option>``, in
    upper or lower case; options in ``given`` take precedence. With ``bridge=openmama`` the URLs are those of OpenMAMA's
    own ZeroMQ bridges (``mama.zmq.transport.<name>.*``), of the one that the property ``framing`` names (``oz``).
    Without ``transport``, a file named by ``properties`` still defines the fields of source records.

    :param known: names of options; one that ends in ``.*`` stands for a family
    :raises OptionError: for an empty transport, or one that is not in the file
    :raises ConfigError: no file, an unreadable one, or wrong fields in it
    """
    low = {key.lower(): value for key, value in given.items()}
    name, path = low.get("transport"), low.get("properties")
    if name is None and path is None:
        return Expanded(dict(given))
    properties = (
        Properties.find(environ.get("WOMBAT_PATH"), environ) if path is None else Properties.load(path, environ)
    )
    fields = SourceFields.from_properties(properties)
    if name is None:
        return Expanded(dict(given), fields=fields, where=properties.path)
    if not name.strip():
        raise OptionError("option transport must not be empty")
    bridge = low.get("bridge", "nats").strip().lower()
    middleware = find(bridge)
    keys = bridge if middleware is None or middleware.property_keys is None else middleware.property_keys
    transport = TransportProperties(properties, keys, name.strip())
    below = transport.below()
    if not below:
        raise OptionError(
            f"option transport={transport.name}: {properties.path} has no key that begins with "
            f"{transport.prefixes[0]}{nearest(transport.name, _transports(properties, transport.bridge))}"
        )
    if middleware is not None and middleware.property_urls is not None and not {"url", "servers"} & low.keys():
        property_urls = part(bridge, "property_urls")
        given = {"url": ",".join(property_urls(properties, transport.name, below.get("framing"))), **given}
    spelled = {option.lower(): option for option in known}
    families = tuple(option.removesuffix("*") for option in spelled if option.endswith(".*"))
    taken = {_ALIASES.get(key, key) for key in low}
    added: dict[str, str] = {}
    for prop, value in below.items():
        option = prop.lower()
        is_known = option in spelled or (bool(families) and option.startswith(families))
        if is_known and _ALIASES.get(option, option) not in taken | {"transport", "properties", "bridge"}:
            added[spelled.get(option, prop)] = value
    return Expanded(
        {**added, **given},
        transport,
        fields,
        f"{properties.path}: {transport.prefixes[0]}*",
        frozenset(name.lower() for name in added),
    )


def _transports(properties: Properties, bridge: str) -> set[str]:
    prefix = f"mama.{bridge}.transport."
    return {key.removeprefix(prefix).split(".", 1)[0] for key in properties if key.startswith(prefix)}
