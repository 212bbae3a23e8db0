"""Registration of a device server in a Tango database, and what it leaves there. Blocks for network I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import DevFailed
from ..giop.ior import DATABASE_KEY, Reference, parse_tango_host
from .device_proxy import DeviceProxy, open_reference

_ADMIN_CLASS = "DServer"
#: reason of a database for a device or server that it does not know
_UNKNOWN = frozenset(("DB_DeviceNotDefined", "DB_ServerNotDefined"))


class TangoDatabaseClient:
    """A Tango database (``DataBaseds``), by its commands. ``with`` connects.

    :param host: ``host:port``, or a list of these, as in ``TANGO_HOST``
    :param timeout: of connecting and of each call, seconds
    """

    def __init__(self, host: str, timeout: float = 3.0) -> None:
        self.host, self._timeout = host, timeout
        self._reference = Reference(parse_tango_host(host), DATABASE_KEY)
        self._proxy: DeviceProxy | None = None

    def __enter__(self) -> TangoDatabaseClient:
        """:raises ServerAway: the database cannot be reached"""
        self._proxy = open_reference(self._reference, f"the database {self.host}", timeout=self._timeout)
        return self

    def __exit__(self, *error: object) -> None:
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None

    def _command(self, name: str, argin: str | list[str]) -> object:
        assert self._proxy is not None, "the database is not open"
        return self._proxy.command(name, argin)

    def register(self, server: str, devices: Mapping[str, str]) -> None:
        """Add a server with its devices.

        :param server: ``exe/instance``
        :param devices: device name -> class
        :raises DevFailed: the database refuses
        """
        words = [server, f"dserver/{server}", _ADMIN_CLASS]
        for name, device_class in devices.items():
            words += [name, device_class]
        self._command("DbAddServer", words)

    def server_of(self, device: str) -> str | None:
        """Server that a device belongs to; None: the database does not know the device."""
        try:
            found = self._command("DbGetDeviceInfo", device)
        except DevFailed as error:
            if error.reason in _UNKNOWN:
                return None
            raise
        return str(found[1][3]) if isinstance(found, tuple) else None

    def export(self, device: str, ior: str, host: str, pid: int, version: str = "5") -> None:
        """Tell where a device is reached.

        :param ior: reference of the device
        :param host: name of the machine
        :param version: IDL version
        """
        self._command("DbExportDevice", [device, ior, host, str(pid), version])

    def unexport(self, server: str) -> None:
        """Tell that a server has ended."""
        self._command("DbUnExportServer", server)

    def put_attribute_properties(self, device: str, properties: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
        """Set properties of attributes, such as ``unit``.

        :param properties: attribute -> name -> values
        """
        words = [device, str(len(properties))]
        for attribute, named in properties.items():
            words += [attribute, str(len(named))]
            for name, values in named.items():
                words += [name, str(len(values)), *(_utf8(value) for value in values)]
        self._command("DbPutDeviceAttributeProperty2", words)

    def remove(self, server: str, devices: Mapping[str, Sequence[str]]) -> None:
        """Remove a server, its devices and the properties of their attributes.

        :param devices: device -> attributes
        """
        for device, attributes in devices.items():
            if attributes:
                self._command("DbDeleteAllDeviceAttributeProperty", [device, *attributes])
        self._command("DbDeleteServer", server)


def _utf8(text: str) -> str:
    """A text as PyTango stores it: its octets in UTF-8, each of them one character of a string of IDL."""
    return text.encode("utf-8").decode("latin-1")
