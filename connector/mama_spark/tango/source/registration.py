"""Registration of an event source in a Tango database, so that clients find its devices by name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mama_spark.contracts.errors import ConfigError
from mama_spark.tango.client.database import TangoDatabaseClient
from mama_spark.tango.giop.ior import format_ior
from mama_spark.tango.topics import IDL

if TYPE_CHECKING:
    from .event_source import TangoEventSource

#: field of an attribute's declaration -> property of the attribute in the database
_PROPERTIES = {"label": "label", "description": "description", "unit": "unit", "display_format": "format"}


class Registration:
    """Devices of one source in its database.

    :param source: a source with a database, which runs
    :param timeout: of each call, seconds
    """

    def __init__(self, source: TangoEventSource, timeout: float = 3.0) -> None:
        assert source.database is not None
        self._source, self._timeout, self._database = source, timeout, source.database
        self._registered: set[str] = set()
        self._attributes: set[tuple[str, str]] = set()

    def __repr__(self) -> str:
        return f"<Registration of {self._source.server} at {self._database}, {len(self._registered)} devices>"

    def update(self) -> None:
        """Register and export devices that are new, and properties of attributes that are new.

        :raises ConfigError: a device belongs to another server
        :raises MamaError: the database cannot be reached, or refuses
        """
        devices = self._source.devices
        new = [name for name in devices if name not in self._registered]
        properties = self._new_properties()
        if not new and not properties and self._registered:
            return
        with TangoDatabaseClient(self._database, self._timeout) as database:
            if new or not self._registered:
                self._register(database, devices, new)
            for device, found in properties.items():
                database.put_attribute_properties(device, found)
        self._attributes |= {(device, name) for device, found in properties.items() for name in found}

    def _register(self, database: TangoDatabaseClient, devices: tuple[str, ...], new: list[str]) -> None:
        source = self._source
        for name in new:
            owner = database.server_of(name)
            if owner is not None and owner.lower() != source.server.lower():
                raise ConfigError(
                    f"the device {name} belongs to the server {owner} in the database {self._database}: remove it "
                    "there, or give the rows another name of the device"
                )
        database.register(source.server, {name: source.device_class(name) for name in devices})
        for name in (source.admin, *new):
            ior = format_ior(source.reference(name))
            database.export(name, ior, source.host_name, os.getpid(), str(IDL))
        self._registered |= {*new, source.admin}

    def _new_properties(self) -> dict[str, dict[str, dict[str, list[str]]]]:
        """Device -> attribute -> property -> values."""
        found: dict[str, dict[str, dict[str, list[str]]]] = {}
        for device in self._source.devices:
            for attribute in self._source.attributes(device):
                given = {name: [getattr(attribute, field)] for field, name in _PROPERTIES.items()}
                given = {name: values for name, values in given.items() if values[0]}
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
        with TangoDatabaseClient(self._database, self._timeout) as database:
            database.unexport(self._source.server)
            if remove:
                source = self._source
                found = {name: [one.name for one in source.attributes(name)] for name in source.devices}
                database.remove(source.server, found)
