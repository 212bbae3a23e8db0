"""Object references: IORs, ``corbaloc:`` addresses, and names of Tango devices. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from ..errors import TangoError
from .cdr import CdrError, CdrReader, CdrWriter

DATABASE_KEY = b"database"
_IIOP, _ALTERNATE = 0, 3  # tag of a profile; of a component that names one more address
_CORBALOC_PORT = 2809
_HOST = r"\[[0-9A-Fa-f:.]+\]|[^:/@,\[\]]*"


class BadAddress(TangoError, ValueError):
    """An IOR, ``corbaloc:`` address or device name that cannot be parsed."""


class Address(NamedTuple):
    """Host and port of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Reference:
    """Reference to an object that can be called by IIOP.

    :ivar addresses: of its server, to be tried in order; at least one
    :ivar type_id: repository id, as ``IDL:Tango/Device_5:1.0``; empty: unknown
    :ivar minor: minor version of GIOP that its server accepts
    """

    addresses: tuple[Address, ...]
    key: bytes
    type_id: str = ""
    minor: int = 2

    def corbaloc(self) -> str:
        hosts = ",".join(f"iiop:1.{self.minor}@{address}" for address in self.addresses)
        return f"corbaloc:{hosts}/{quote(self.key, safe=_KEY_CHARACTERS)}"


_KEY_CHARACTERS = ";/:?@&=+$,-_.!~*'()"


# --- IOR -----------------------------------------------------------------------------------------------------


def parse_ior(text: str) -> Reference:
    """Parse ``IOR:`` and hex.

    :raises BadAddress: it cannot be parsed, or has no IIOP profile
    """
    try:
        if text[:4].upper() != "IOR:":
            raise ValueError("no IOR:")
        data = bytes.fromhex(text[4:].strip())
        if not data or data[0] > 1:
            raise ValueError("no byte order")
        return read_reference(CdrReader(data, data[0] == 1, 1))
    except (ValueError, CdrError) as error:
        raise BadAddress(f"no IOR: {error}") from None


def read_reference(reader: CdrReader) -> Reference:
    """Decode an IOR in a message, as in a LOCATION_FORWARD.

    :raises CdrError: it is truncated, or has no IIOP profile
    """
    type_id, found = reader.string(), None
    for _ in range(reader.count(8)):
        tag = reader.ulong()
        if tag == _IIOP and found is None:
            found = _read_profile(reader.encapsulation(), type_id)
        else:
            reader.octets()
    if found is None:
        raise CdrError("an object without an IIOP address")
    return found


def _read_profile(reader: CdrReader, type_id: str) -> Reference:
    major, minor = reader.octet(), reader.octet()
    if major != 1:
        raise CdrError(f"IIOP {major}.{minor} is not known")
    addresses = [Address(reader.string(), reader.ushort())]
    key = reader.octets()
    if minor:
        for _ in range(reader.count(8)):
            tag, data = reader.ulong(), reader.octets()
            if tag == _ALTERNATE:
                component = CdrReader(data, data[:1] == b"\1", 1)
                addresses.append(Address(component.string(), component.ushort()))
    return Reference(tuple(addresses), key, type_id, min(minor, 2))


def write_reference(writer: CdrWriter, reference: Reference) -> None:
    """The inverse of :func:`read_reference`."""
    writer.string(reference.type_id)
    writer.count(1)
    writer.ulong(_IIOP)
    profile = CdrWriter.inner(writer.little)
    profile.octet(1)
    profile.octet(reference.minor)
    profile.string(reference.addresses[0].host)
    profile.ushort(reference.addresses[0].port)
    profile.octets(reference.key)
    if reference.minor:
        profile.count(len(reference.addresses) - 1)
        for address in reference.addresses[1:]:
            component = CdrWriter.inner(writer.little)
            component.string(address.host)
            component.ushort(address.port)
            profile.ulong(_ALTERNATE)
            profile.encapsulation(component)
    writer.encapsulation(profile)


def format_ior(reference: Reference, little: bool = True) -> str:
    """The inverse of :func:`parse_ior`."""
    writer = CdrWriter.inner(little)
    write_reference(writer, reference)
    return "IOR:" + writer.getvalue().hex()


# --- corbaloc ------------------------------------------------------------------------------------------------

_CORBALOC_ADDRESS = re.compile(
    rf"(?:iiop)?:(?:1\.(?P<minor>[0-9]{{1,3}})@)?(?P<host>{_HOST})(?::(?P<port>[0-9]{{1,5}}))?"
)


def parse_corbaloc(text: str) -> Reference:
    """``corbaloc:iiop:host:port/key``, with a version (``1.2@``), several addresses, and escapes (``%20``) or without.
    The default version is 1.0.

    :raises BadAddress: it cannot be parsed
    """
    scheme, _, rest = text.partition(":")
    addresses_text, slash, key = rest.partition("/")
    found = [_CORBALOC_ADDRESS.fullmatch(place) for place in addresses_text.split(",")]
    if scheme.lower() != "corbaloc" or not slash or not key or None in found:
        raise BadAddress(f"no corbaloc address: {text[:200]!r}")
    addresses, minors = [], []
    for place in found:
        assert place is not None
        addresses.append(_address(place["host"], place["port"] or _CORBALOC_PORT, text))
        minors.append(int(place["minor"] or 0))
    try:
        object_key = unquote_to_bytes(key)
    except UnicodeEncodeError as e:
        raise BadAddress(f"no corbaloc address: {text[:200]!r} is no UTF-8") from e
    return Reference(tuple(addresses), object_key, minor=min(2, *minors))


def _address(host: str, port: str | int, text: str) -> Address:
    number = int(port)
    if not host or not 0 < number < 65536:
        raise BadAddress(f"no host and port: {text[:200]!r}")
    return Address(host.strip("[]"), number)


# --- names of devices ----------------------------------------------------------------------------------------

_NAME = re.compile(
    rf"(?:tango:)?//(?P<host>{_HOST}):(?P<port>[0-9]{{1,5}})/(?P<rest>.*)|(?P<bare>[^:]*)", re.IGNORECASE
)
_SUFFIX = re.compile(r"#dbase=(?P<dbase>yes|no)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DeviceName:
    """Name of a device, or of one of its attributes.

    :ivar address: of the database; with ``dbase`` false, of the device's own server
    :ivar device: ``domain/family/member``, in lower case
    :ivar attribute: in lower case; None: it is the name of a device
    """

    address: Address
    device: str
    attribute: str | None = None
    dbase: bool = True

    def __str__(self) -> str:
        attribute = f"/{self.attribute}" if self.attribute else ""
        return f"tango://{self.address}/{self.device}{attribute}{'' if self.dbase else '#dbase=no'}"

    def sibling(self, device: str) -> DeviceName:
        """Name of another device of the same database, or of the same server without one."""
        return DeviceName(self.address, device.lower(), None, self.dbase)

    @property
    def reference(self) -> Reference:
        """The object to call first: the database, or the device of a server without one."""
        return Reference((self.address,), DATABASE_KEY if self.dbase else self.device.encode("latin-1"))


def parse_tango_host(text: str) -> Address:
    """``host:port``, the first one of a comma list, as in ``TANGO_HOST``.

    :raises BadAddress: it cannot be parsed
    """
    first = text.split(",")[0].strip()
    host, _, port = first.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or not re.fullmatch(_HOST, host):
        raise BadAddress(f"no host:port: {text[:200]!r}")
    return _address(host, port, text)


def parse_device(text: str, tango_host: str | None = None) -> DeviceName:
    """Parse ``[tango://host:port/]domain/family/member[/attribute][#dbase=no]``.

    :param tango_host: for names without a host
    :raises BadAddress: it cannot be parsed, or has no host and ``tango_host`` is empty
    """
    head, hash_, tail = text.strip().partition("#")
    suffix, found = _SUFFIX.fullmatch(hash_ + tail), _NAME.fullmatch(head)
    if found is None or (hash_ and suffix is None):
        raise BadAddress(f"no name of a device: {text[:200]!r}")
    parts = (found["bare"] if found["rest"] is None else found["rest"]).lower().split("/")
    if len(parts) not in (3, 4) or not all(parts) or not re.fullmatch(r"[\x21-\x7e/\xa1-\xff ]+", "/".join(parts)):
        raise BadAddress(f"no name of a device: {text[:200]!r}")
    if found["host"] is not None:
        address = _address(found["host"], found["port"], text)
    elif tango_host:
        address = parse_tango_host(tango_host)
    else:
        raise BadAddress(f"no host in {text[:200]!r}, and no TANGO_HOST")
    dbase = suffix is None or suffix["dbase"].lower() == "yes"
    return DeviceName(address, "/".join(parts[:3]), parts[3] if len(parts) == 4 else None, dbase)
