"""Registration of an event source in a Tango database, so that clients find its devices by name. Blocks for network
I/O."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mama_spark.contracts.errors import ConfigError

from ..client.device_proxy import DeviceProxy, open_reference
from ..errors import DevFailed
from ..giop.ior import DATABASE_KEY, Reference, format_ior, parse_tango_host
from ..topics import IDL

if TYPE_CHECKING:
    from .event_source import TangoEventSource

#: field of an attribute's declaration -> property of the attribute in the database
_PROPERTIES = {"label": "label", "description": "description", "unit": "unit", "display_format": "format"}
_ADMIN_CLASS = "DServer"
_TIMEOUT = 3.0  #: seconds of each call
#: reason of a database for a device or server that it does not know
_UNKNOWN = frozenset(("DB_DeviceNotDefined", "DB_ServerNotDefined"))


class Registration:
    """Devices of one source, which runs, in its database; for a source without a database it does nothing."""

    def __init__(self, source: TangoEventSource) -> None:
        self._source, self._database = source, source.settings.database or ""
        self._registered: set[str] = set()
        self._attributes: set[tuple[str, str]] = set()

    def _open(self) -> DeviceProxy:
        """Connect to the database.

        :raises ServerAway: the database cannot be reached
        """
        reference = Reference(parse_tango_host(self._database), DATABASE_KEY)
        return open_reference(reference, f"the database {self._database}", timeout=_TIMEOUT)

    def update(self) -> None:
        """Register and export new devices, and properties of new attributes.

        :raises ConfigError: a device belongs to another server
        :raises MamaError: the database cannot be reached, or refuses
        """
        if not self._database:
            return
        devices = self._source.devices
        new = [name for name in devices if name not in self._registered]
        properties = self._new_properties()
        if not new and not properties and self._registered:
            return
        with self._open() as database:
            if new or not self._registered:
                self._register(database, devices, new)
            for device, found in properties.items():
                words = [device, str(len(found))]
                for attribute, named in found.items():
                    words += [attribute, str(len(named))]
                    for name, value in named.items():
                        words += [name, "1", _utf8(value)]
                database.command("DbPutDeviceAttributeProperty2", words)
        self._attributes |= {(device, name) for device, found in properties.items() for name in found}

    def _register(self, database: DeviceProxy, devices: tuple[str, ...], new: list[str]) -> None:
        source = self._source
        for name in new:
            owner = _server_of(database, name)
            if owner is not None and owner.lower() != source.settings.server.lower():
                raise ConfigError(
                    f"the device {name} belongs to the server {owner} in the database {self._database}: remove it "
                    "there, or give the rows another name of the device"
                )
        server = source.settings.server
        words = [server, f"dserver/{server}", _ADMIN_CLASS]
        for name in devices:
            words += [name, source.device_class(name)]
        database.command("DbAddServer", words)
        for name in (source.admin, *new):
            ior = format_ior(source.reference(name))
            database.command("DbExportDevice", [name, ior, source.host_name, str(os.getpid()), str(IDL)])
        self._registered |= {*new, source.admin}

    def _new_properties(self) -> dict[str, dict[str, dict[str, str]]]:
        """Device -> attribute -> property, such as ``unit`` -> value."""
        found: dict[str, dict[str, dict[str, str]]] = {}
        for device in self._source.devices:
            for attribute in self._source.attributes(device):
                given = {name: value for field, name in _PROPERTIES.items() if (value := getattr(attribute, field))}
                if given and (device, attribute.name) not in self._attributes:
                    found.setdefault(device, {})[attribute.name] = given
        return found

    def end(self, remove: bool = False) -> None:
        """Tell the database that the server has ended.

        :param remove: remove server, devices and properties
        :raises MamaError: the database cannot be reached, or refuses
        """
        if not self._registered:
            return
        with self._open() as database:
            source = self._source
            database.command("DbUnExportServer", source.settings.server)
            if remove:
                for device in source.devices:
                    attributes = [attribute.name for attribute in source.attributes(device)]
                    database.command("DbDeleteAllDeviceAttributeProperty", [device, *attributes])
                database.command("DbDeleteServer", source.settings.server)


def _server_of(database: DeviceProxy, device: str) -> str | None:
    """Server that a device belongs to; None: the database does not know the device."""
    try:
        found = database.command("DbGetDeviceInfo", device)
    except DevFailed as error:
        if error.reason in _UNKNOWN:
            return None
        raise
    return str(found[1][3]) if isinstance(found, tuple) else None


def _utf8(text: str) -> str:
    """A text as PyTango stores it: its bytes in UTF-8, each of them one character of a string of IDL."""
    return text.encode("utf-8").decode("latin-1")
