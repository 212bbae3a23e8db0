"""CORBA operations of a Tango device, for client and server: their arguments and results in GIOP messages. Pure.

The commands of admin devices that negotiate subscriptions are in :mod:`~mama_spark.tango.idl.negotiation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from ..errors import (
    DEV_FAILED,
    Completed,
    DevFailed,
    SystemException,
    TangoError,
    failed,
    system_exception,
)
from ..giop.cdr import CdrError, CdrReader, CdrWriter
from ..giop.ior import Reference, read_reference
from ..giop.messages import GiopReply, ReplyStatus
from ..giop.typecode import TypeCode, read_any, write_any
from ..types import AttributeValue
from .values import read_errors, read_value, write_errors, write_value

_SYSTEM = "IDL:omg.org/CORBA/"
_VALUE_SIZE = 49  #: octets of the shortest value of an attribute


class Operation(StrEnum):
    """Operations that subscriptions need; the numbers are versions of Tango's IDL."""

    IS_A = "_is_a"
    NON_EXISTENT = "_non_existent"
    PING = "ping"
    INFO = "info"
    INFO_3 = "info_3"
    INFO_6 = "info_6"
    ADM_NAME = "_get_adm_name"
    NAME = "_get_name"
    COMMAND = "command_inout"
    COMMAND_2 = "command_inout_2"
    COMMAND_4 = "command_inout_4"
    READ_3 = "read_attributes_3"
    READ_4 = "read_attributes_4"
    READ_5 = "read_attributes_5"


def device_type(idl: int) -> str:
    """Repository id of a device's interface, the argument of ``_is_a``."""
    return f"IDL:Tango/Device{f'_{idl}' if idl > 1 else ''}:1.0"


class DevSource(IntEnum):
    """DevSource: where a server reads a value."""

    DEV = 0
    CACHE = 1
    CACHE_DEV = 2


class Language(IntEnum):
    """LockerLanguage; the last two came with IDL 6 and carry telemetry."""

    CPLUSPLUS = 0
    JAVA = 1
    CPLUSPLUS_6 = 2
    JAVA_6 = 3


@dataclass(frozen=True, slots=True)
class ClientIdent:
    """ClntIdent: identity of a client.

    :ivar pid: of a C++ client
    :ivar main_class: of a Java client, with its ``uuid``
    """

    language: Language = Language.CPLUSPLUS
    pid: int = 0
    main_class: str = ""
    uuid: tuple[int, int] = (0, 0)


def read_client(reader: CdrReader) -> ClientIdent:
    """The last argument of a call; fields that IDL 6 added are skipped."""
    number = reader.ulong()
    if number >= len(Language):
        raise CdrError(f"a client in language {number}")
    language = Language(number)
    if language in (Language.CPLUSPLUS, Language.CPLUSPLUS_6):
        found = ClientIdent(language, reader.ulong())
    else:
        found = ClientIdent(language, 0, reader.string(), (reader.ulonglong(), reader.ulonglong()))
    if language in (Language.CPLUSPLUS_6, Language.JAVA_6):
        reader.raw(reader.left)
    return found


def write_client(writer: CdrWriter, client: ClientIdent) -> None:
    """:raises CdrError: a client of IDL 6, which is not supported"""
    writer.ulong(client.language)
    if client.language is Language.CPLUSPLUS:
        writer.ulong(client.pid)
    elif client.language is Language.JAVA:
        writer.string(client.main_class)
        for number in client.uuid:
            writer.ulonglong(number)
    else:
        raise CdrError(f"{client.language.name} is not written")


# --- commands ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommandCall:
    """Arguments of ``command_inout``; older versions have no source or client."""

    name: str
    type: TypeCode
    argin: Any
    source: DevSource = DevSource.DEV
    client: ClientIdent | None = None


def read_source(reader: CdrReader) -> DevSource:
    number = reader.ulong()
    if number >= len(DevSource):
        raise CdrError(f"a source of number {number}")
    return DevSource(number)


def read_command(reader: CdrReader, operation: str) -> CommandCall:
    """:raises CdrError: cut short, or no such arguments"""
    name = reader.string()
    code, argin = read_any(reader)
    source = DevSource.DEV if operation == Operation.COMMAND else read_source(reader)
    return CommandCall(name, code, argin, source, read_client(reader) if operation == Operation.COMMAND_4 else None)


def write_command(writer: CdrWriter, call: CommandCall, operation: str = Operation.COMMAND_4) -> None:
    """The inverse of :func:`read_command`."""
    writer.string(call.name)
    write_any(writer, call.type, call.argin)
    if operation != Operation.COMMAND:
        writer.ulong(call.source)
    if operation == Operation.COMMAND_4:
        write_client(writer, call.client or ClientIdent())


# --- reading attributes --------------------------------------------------------------------------------------

_IDL_OF = {Operation.READ_3: 3, Operation.READ_4: 4, Operation.READ_5: 5}


def reading(idl: int) -> Operation:
    """The operation to read attributes of a device of this version."""
    return Operation.READ_5 if idl >= 5 else Operation.READ_4 if idl == 4 else Operation.READ_3


@dataclass(frozen=True, slots=True)
class ReadCall:
    """Arguments of ``read_attributes``."""

    names: tuple[str, ...]
    source: DevSource = DevSource.CACHE_DEV
    client: ClientIdent | None = None


def read_reading(reader: CdrReader, operation: str) -> ReadCall:
    """:raises CdrError: cut short, or no such arguments"""
    names, source = tuple(reader.strings()), read_source(reader)
    return ReadCall(names, source, None if operation == Operation.READ_3 else read_client(reader))


def write_reading(writer: CdrWriter, call: ReadCall, operation: str = Operation.READ_5) -> None:
    """The inverse of :func:`read_reading`."""
    writer.strings(call.names)
    writer.ulong(call.source)
    if operation != Operation.READ_3:
        write_client(writer, call.client or ClientIdent())


def read_values(reader: CdrReader, operation: str = Operation.READ_5) -> list[AttributeValue]:
    """Result of ``read_attributes``: a value for each name; an attribute that could not be read carries its errors.

    :raises CdrError: it is truncated
    """
    idl = _IDL_OF[Operation(operation)]
    return [read_value(reader, idl) for _ in range(reader.count(_VALUE_SIZE))]


def write_values(writer: CdrWriter, values: list[AttributeValue], operation: str = Operation.READ_5) -> None:
    """The inverse of :func:`read_values`."""
    writer.count(len(values))
    for value in values:
        write_value(writer, value, _IDL_OF[Operation(operation)])


# --- about a device ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """DevInfo, DevInfo_3 (with ``dev_type``), DevInfo_6 (with ``versions``).

    :ivar server_version: of the IDL that the device has
    """

    dev_class: str
    server_id: str
    server_host: str
    server_version: int
    doc_url: str
    dev_type: str | None = None
    versions: tuple[tuple[str, str], ...] | None = None


def read_info(reader: CdrReader, operation: str = Operation.INFO) -> DeviceInfo:
    """:raises CdrError: cut short"""
    info = (reader.string(), reader.string(), reader.string(), reader.long(), reader.string())
    if operation == Operation.INFO:
        return DeviceInfo(*info)
    dev_type = reader.string()
    if operation == Operation.INFO_3:
        return DeviceInfo(*info, dev_type)
    return DeviceInfo(*info, dev_type, tuple((reader.string(), reader.string()) for _ in range(reader.count(10))))


def write_info(writer: CdrWriter, info: DeviceInfo, operation: str = Operation.INFO) -> None:
    """The inverse of :func:`read_info`."""
    for text in (info.dev_class, info.server_id, info.server_host):
        writer.string(text)
    writer.long(info.server_version)
    writer.string(info.doc_url)
    if operation != Operation.INFO:
        writer.string(info.dev_type or info.dev_class)
    if operation == Operation.INFO_6:
        writer.count(len(info.versions or ()))
        for pair in info.versions or ():
            for text in pair:
                writer.string(text)


# --- replies that are exceptions -----------------------------------------------------------------------------


class Forwarded(TangoError):
    """LOCATION_FORWARD: the object is at another reference."""

    retryable = True

    def __init__(self, reference: Reference) -> None:
        super().__init__(f"forwarded to {reference.corbaloc()}")
        self.reference = reference


def check(reply: GiopReply, reader: CdrReader) -> CdrReader:
    """Return the reader if the reply is a result; else raise what it is.

    :raises DevFailed: the device refused
    :raises SystemException: the ORB refused
    :raises Forwarded: the object has moved
    :raises CdrError: it is truncated, or an exception that no operation of a device declares
    """
    if reply.status is ReplyStatus.NO_EXCEPTION:
        return reader
    if reply.status is ReplyStatus.USER_EXCEPTION:
        name = reader.string()
        if name != DEV_FAILED:
            raise CdrError(f"an exception {name:.100}")
        raise failed(read_errors(reader))
    if reply.status is ReplyStatus.SYSTEM_EXCEPTION:
        name, minor, completed = reader.string(), reader.ulong(), reader.ulong()
        if completed >= len(Completed):
            raise CdrError(f"completed {completed}")
        raise system_exception(name.removeprefix(_SYSTEM).removesuffix(":1.0"), minor, Completed(completed))
    if reply.status is ReplyStatus.NEEDS_ADDRESSING_MODE:
        raise CdrError("the server wants another form of address")
    raise Forwarded(read_reference(reader))


def write_failure(writer: CdrWriter, error: DevFailed) -> None:
    """Body of a reply with USER_EXCEPTION."""
    writer.string(DEV_FAILED)
    write_errors(writer, error.errors)


def write_system_exception(writer: CdrWriter, error: SystemException) -> None:
    """Body of a reply with SYSTEM_EXCEPTION."""
    writer.string(f"{_SYSTEM}{error.name}:1.0")
    writer.ulong(error.minor)
    writer.ulong(error.completed)
