"""Object references: IORs (CORBA 3.0, 13.6), and names of Tango devices. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import TangoError
from .cdr import CdrError, CdrReader, CdrWriter

DATABASE_KEY = b"database"
_IIOP, _ALTERNATE = 0, 3  # TAG_INTERNET_IOP, a profile; TAG_ALTERNATE_IIOP_ADDRESS, a component
_HOST = r"\[[0-9A-Fa-f:.]+\]|[^:/@,\[\]]*"


class BadAddress(TangoError, ValueError):
    """An IOR or device name that cannot be parsed."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Reference:
    """Reference to an object that is called by IIOP.

    :ivar addresses: at least one; clients try them in order
    :ivar key: object key at its server
    :ivar type_id: repository id such as ``IDL:Tango/Device_5:1.0``; empty: unknown
    :ivar minor: newest minor version of GIOP 1 that its server accepts
    """

    addresses: tuple[Address, ...]
    key: bytes
    type_id: str = ""
    minor: int = 2


def parse_ior(text: str) -> Reference:
    """Parse a stringified IOR: ``IOR:`` and hexadecimal digits.

    :raises BadAddress: the text is no IOR, or has no IIOP profile
    """
    try:
        if text[:4].upper() != "IOR:":
            raise ValueError("it must begin with IOR:")
        data = bytes.fromhex(text[4:].strip())
        if not data or data[0] > 1:
            raise ValueError("its first byte must be a byte order, 0 or 1")
        return read_reference(CdrReader(data, data[0] == 1, 1))
    except (ValueError, CdrError) as error:
        raise BadAddress(f"invalid IOR: {error}") from None


def read_reference(reader: CdrReader) -> Reference:
    """Decode an IOR in a message, such as a LOCATION_FORWARD.

    :raises CdrError: the IOR is truncated or has no IIOP profile
    """
    type_id, found = reader.string(), None
    for _ in range(reader.count(8)):
        tag = reader.ulong()
        if tag == _IIOP and found is None:
            found = _read_profile(reader.encapsulation(), type_id)
        else:
            reader.octets()
    if found is None:
        raise CdrError("the object reference has no IIOP profile")
    return found


def _read_profile(reader: CdrReader, type_id: str) -> Reference:
    major, minor = reader.octet(), reader.octet()
    if major != 1:
        raise CdrError(f"IIOP {major}.{minor} is not supported")
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


def _address(host: str, port: str | int, text: str) -> Address:
    number = int(port)
    if not host or not 0 < number < 65536:
        raise BadAddress(f"invalid address {text[:200]!r}: it must have a host and a port from 1 to 65535")
    return Address(host.strip("[]"), number)


_NAME = re.compile("(?:tango:)?//(?P<hosts>[^/]*)/(?P<rest>.*)|(?P<bare>[^:]*)", re.IGNORECASE)
_SUFFIX = re.compile(r"#dbase=(?P<dbase>yes|no)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DeviceName:
    """Name of a device or attribute.

    :ivar address: address of the database; if ``dbase`` is false, of the device's server
    :ivar device: ``domain/family/member``, in lower case
    :ivar attribute: attribute in lower case; None for the name of a device
    :ivar alternates: other addresses of the same database, tried if the first one cannot be reached
    """

    address: Address
    device: str
    attribute: str | None = None
    dbase: bool = True
    alternates: tuple[Address, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        attribute = f"/{self.attribute}" if self.attribute else ""
        return f"tango://{self.address}/{self.device}{attribute}{'' if self.dbase else '#dbase=no'}"

    def sibling(self, device: str) -> DeviceName:
        """Name of another device of the same database, or of the same server if there is no database."""
        return DeviceName(self.address, device.lower(), None, self.dbase, self.alternates)

    @property
    def reference(self) -> Reference:
        """Reference to call first: the database, or the device itself if its server has no database."""
        key = DATABASE_KEY if self.dbase else self.device.encode("latin-1")
        return Reference((self.address, *self.alternates), key)


def parse_tango_host(text: str) -> tuple[Address, ...]:
    """Parse the value of ``TANGO_HOST``: ``host:port``, or a list of these with commas, which are tried in order.

    :raises BadAddress: the text is no ``host:port``
    """
    found = []
    for one in text.split(","):
        host, _, port = one.strip().rpartition(":")
        if not re.fullmatch("[0-9]{1,5}", port) or not re.fullmatch(_HOST, host):
            raise BadAddress(f"invalid address {text[:200]!r}: it must be host:port")
        found.append(_address(host, port, text))
    return tuple(found)


def parse_device(text: str, tango_host: str | None = None) -> DeviceName:
    """Parse ``[tango://host:port[,host:port]/]domain/family/member[/attribute][#dbase=no]``.

    :param tango_host: ``host:port`` of the database of names without a host
    :raises BadAddress: the text is no device name, or has no host and ``tango_host`` is empty
    """
    head, hash_, tail = text.strip().partition("#")
    suffix, found = _SUFFIX.fullmatch(hash_ + tail), _NAME.fullmatch(head)
    if found is None or (hash_ and suffix is None):
        raise BadAddress(f"invalid device name: {text[:200]!r}")
    parts = (found["bare"] if found["rest"] is None else found["rest"]).lower().split("/")
    if len(parts) not in (3, 4) or not all(parts) or not re.fullmatch(r"[\x21-\x7e/\xa1-\xff ]+", "/".join(parts)):
        raise BadAddress(f"invalid device name: {text[:200]!r}")
    hosts = found["hosts"] if found["rest"] is not None else tango_host
    if not hosts:
        raise BadAddress(f"the device name {text[:200]!r} has no host, and TANGO_HOST is not set")
    addresses = parse_tango_host(hosts)
    dbase = suffix is None or suffix["dbase"].lower() == "yes"
    attribute = parts[3] if len(parts) == 4 else None
    return DeviceName(addresses[0], "/".join(parts[:3]), attribute, dbase, addresses[1:])
