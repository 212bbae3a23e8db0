"""Which devices a database knows; which attributes a device has, and how they are configured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from ..errors import BadReply, DevFailed, SystemException
from ..giop.cdr import CdrError, CdrReader, CdrWriter
from ..giop.ior import DATABASE_KEY, Reference, parse_tango_host
from ..idl.structs import CONFIG_3, CONFIG_5, Struct
from ..types import AttributeConfig
from .rpc import DeviceProxy, open_reference

#: What stands for all of them instead of names.
ALL = "All attributes_3"
_WIDE_LIST, _ADMINS = "DbGetDeviceWideList", "dserver/"
_CONFIG_SIZE = 200  # octets of the shortest configuration
#: newest first
_OPERATIONS: tuple[tuple[str, Struct], ...] = (
    ("get_attribute_config_5", CONFIG_5),
    ("get_attribute_config_3", CONFIG_3),
)


def attribute_configs(device: DeviceProxy, names: Sequence[str] = (ALL,)) -> list[AttributeConfig]:
    """Of these attributes of a device, one each; of all of them, State and Status among them, in its order.

    :raises MamaError: as calls do (:class:`~mama_spark.tango.client.rpc.DeviceProxy`)
    """
    for operation, struct in _OPERATIONS[:-1]:
        try:
            return _ask(device, operation, struct, names)
        except (SystemException, DevFailed):  # an older interface
            continue
    return _ask(device, *_OPERATIONS[-1], names)


def device_names(host: str, pattern: str, timeout: float) -> set[str]:
    """Devices that match, in lower case, whether they run or not. Admin devices only where the pattern names them.

    :param host: ``host:port`` of the database
    :param pattern: of names, with ``*``, ``?`` and ``[ab]``
    :raises MamaError: as calls do
    """
    asked = re.sub(r"\?|\[[^\]]*\]", "*", pattern)  # databases know no other wildcard
    with open_reference(
        Reference((parse_tango_host(host),), DATABASE_KEY), "the database", timeout=timeout
    ) as database:
        found = database.command(_WIDE_LIST, asked)
    if not isinstance(found, list):
        raise BadReply(f"{_WIDE_LIST} of {host} gave no names")
    names = {str(name).lower() for name in found}
    admins = pattern.startswith(_ADMINS)
    return {name for name in names if fnmatchcase(name, pattern) and (admins or not name.startswith(_ADMINS))}


def _ask(device: DeviceProxy, operation: str, struct: Struct, names: Sequence[str]) -> list[AttributeConfig]:
    def body(writer: CdrWriter) -> None:
        writer.strings(list(names))

    def read(reader: CdrReader) -> list[AttributeConfig]:
        found = [struct.read(reader) for _ in range(reader.count(_CONFIG_SIZE))]
        if names != (ALL,) and len(found) != len(names):
            raise CdrError(f"{len(found)} configurations of {len(names)} attributes")
        return found

    return device.call(operation, body, read)
