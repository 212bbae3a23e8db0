"""CORBA operations of a Tango device (Tango IDL, interfaces Device to Device_6): arguments, results, exceptions. Pure.

The module encodes and decodes bodies of GIOP messages, for client and server; decoding raises :class:`CdrError` for
data that is truncated or invalid. The commands of admin devices that negotiate subscriptions are in
:mod:`~mama_spark.tango.idl.negotiation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from ..errors import DEV_FAILED, Completed, DevFailed, SystemException, TangoError, failed, system_exception
from ..giop.cdr import CdrError, CdrReader, CdrWriter
from ..giop.ior import Reference, read_reference
from ..giop.messages import GiopReply, ReplyStatus
from ..giop.typecode import TypeCode, read_any, write_any
from ..types import AttributeValue
from .structs import Struct
from .values import read_errors, read_value, write_errors, write_value

_SYSTEM = "IDL:omg.org/CORBA/"
_VALUE_SIZE = 49  #: smallest size of an encoded attribute value, in bytes


class Operation(StrEnum):
    """Names of CORBA operations; the numbers in them are versions of the Tango IDL."""

    IS_A = "_is_a"
    NON_EXISTENT = "_non_existent"
    PING = "ping"
    INFO = "info"
    INFO_3 = "info_3"
    ADM_NAME = "_get_adm_name"
    NAME = "_get_name"
    COMMAND = "command_inout"
    COMMAND_2 = "command_inout_2"
    COMMAND_4 = "command_inout_4"
    READ_3 = "read_attributes_3"
    READ_4 = "read_attributes_4"
    READ_5 = "read_attributes_5"


def device_type(idl: int) -> str:
    """Repository id of the device interface of an IDL version, the argument of ``_is_a``."""
    return f"IDL:Tango/Device{f'_{idl}' if idl > 1 else ''}:1.0"


class DevSource(IntEnum):
    """DevSource (Tango IDL): where a server reads a value from."""

    DEV = 0
    CACHE = 1
    CACHE_DEV = 2


class Language(IntEnum):
    """LockerLanguage (Tango IDL); IDL 6 added the last two, which carry telemetry."""

    CPLUSPLUS = 0
    JAVA = 1
    CPLUSPLUS_6 = 2
    JAVA_6 = 3


@dataclass(frozen=True, slots=True)
class ClientIdent:
    """ClntIdent (Tango IDL): identity of a client: process id in C++; main class, and both halves of a UUID, in
    Java."""

    language: Language = Language.CPLUSPLUS
    pid: int = 0
    main_class: str = ""
    uuid: tuple[int, int] = (0, 0)


def read_client(reader: CdrReader) -> ClientIdent:
    """Decode the identity of a client, the last argument of a call. Skips the fields that IDL 6 added."""
    language = reader.enum(Language)
    if language in (Language.CPLUSPLUS, Language.CPLUSPLUS_6):
        found = ClientIdent(language, reader.ulong())
    else:
        found = ClientIdent(language, 0, reader.string(), (reader.ulonglong(), reader.ulonglong()))
    if language in (Language.CPLUSPLUS_6, Language.JAVA_6):
        reader.raw(reader.left)
    return found


def write_client(writer: CdrWriter, client: ClientIdent) -> None:
    """The inverse of :func:`read_client`.

    :raises CdrError: the client is one of IDL 6, which is not supported
    """
    writer.ulong(client.language)
    if client.language is Language.CPLUSPLUS:
        writer.ulong(client.pid)
    elif client.language is Language.JAVA:
        writer.string(client.main_class)
        for number in client.uuid:
            writer.ulonglong(number)
    else:
        raise CdrError(f"the identity of a client of {client.language.name} cannot be encoded")


@dataclass(frozen=True, slots=True)
class CommandCall:
    """Arguments of ``command_inout`` (``_2`` added the source, ``_4`` the client); ``type`` is that of ``argin``."""

    name: str
    type: TypeCode
    argin: Any
    source: DevSource = DevSource.DEV
    client: ClientIdent | None = None


def read_command(reader: CdrReader, operation: str) -> CommandCall:
    """Decode the arguments of this version of ``command_inout``."""
    name = reader.string()
    code, argin = read_any(reader)
    source = DevSource.DEV if operation == Operation.COMMAND else reader.enum(DevSource)
    return CommandCall(name, code, argin, source, read_client(reader) if operation == Operation.COMMAND_4 else None)


def write_command(writer: CdrWriter, call: CommandCall, operation: str = Operation.COMMAND_4) -> None:
    writer.string(call.name)
    write_any(writer, call.type, call.argin)
    if operation != Operation.COMMAND:
        writer.ulong(call.source)
    if operation == Operation.COMMAND_4:
        write_client(writer, call.client or ClientIdent())


_IDL_OF = {Operation.READ_3: 3, Operation.READ_4: 4, Operation.READ_5: 5}


def reading(idl: int) -> Operation:
    """Operation that reads attributes of a device of this IDL version."""
    return Operation.READ_5 if idl >= 5 else Operation.READ_4 if idl == 4 else Operation.READ_3


@dataclass(frozen=True, slots=True)
class ReadCall:
    """Arguments of ``read_attributes`` (``_4`` added the client)."""

    names: tuple[str, ...]
    source: DevSource = DevSource.CACHE_DEV
    client: ClientIdent | None = None


def read_reading(reader: CdrReader, operation: str) -> ReadCall:
    """Decode the arguments of this version of ``read_attributes``."""
    names, source = tuple(reader.strings()), reader.enum(DevSource)
    return ReadCall(names, source, None if operation == Operation.READ_3 else read_client(reader))


def write_reading(writer: CdrWriter, call: ReadCall, operation: str = Operation.READ_5) -> None:
    writer.strings(call.names)
    writer.ulong(call.source)
    if operation != Operation.READ_3:
        write_client(writer, call.client or ClientIdent())


def read_values(reader: CdrReader, operation: str = Operation.READ_5) -> list[AttributeValue]:
    """Decode the result of ``read_attributes``: one value for each name, with ``errors`` if it could not be read."""
    idl = _IDL_OF[Operation(operation)]
    return [read_value(reader, idl) for _ in range(reader.count(_VALUE_SIZE))]


def write_values(writer: CdrWriter, values: list[AttributeValue], operation: str = Operation.READ_5) -> None:
    writer.count(len(values))
    for value in values:
        write_value(writer, value, _IDL_OF[Operation(operation)])


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """DevInfo (Tango IDL); DevInfo_3 added ``dev_type``. ``server_version`` is the IDL version of the device."""

    dev_class: str
    server_id: str
    server_host: str
    server_version: int
    doc_url: str
    dev_type: str = ""


INFO, INFO_3 = Struct(DeviceInfo, "dev_type"), Struct(DeviceInfo)


class Forwarded(TangoError):
    """LOCATION_FORWARD (CORBA 3.0, 15.4.3.2): the object has another reference."""

    retryable = True

    def __init__(self, reference: Reference) -> None:
        super().__init__(f"forwarded to {' or '.join(map(str, reference.addresses))}")
        self.reference = reference


def check(reply: GiopReply, reader: CdrReader) -> CdrReader:
    """The reader if the reply carries a result; else raises the exception that it carries.

    :raises DevFailed: the device refused the call
    :raises SystemException: the server's ORB refused the call
    :raises Forwarded: the object has another reference
    :raises CdrError: the reply is truncated, or carries an exception that no operation of a device declares
    """
    if reply.status is ReplyStatus.NO_EXCEPTION:
        return reader
    if reply.status is ReplyStatus.USER_EXCEPTION:
        name = reader.string()
        if name != DEV_FAILED:
            raise CdrError(f"the reply carries the exception {name:.100}, which no operation of a device declares")
        raise failed(read_errors(reader))
    if reply.status is ReplyStatus.SYSTEM_EXCEPTION:
        name, minor, completed = reader.string(), reader.ulong(), reader.enum(Completed)
        raise system_exception(name.removeprefix(_SYSTEM).removesuffix(":1.0"), minor, completed)
    if reply.status is ReplyStatus.NEEDS_ADDRESSING_MODE:
        raise CdrError("the server needs another addressing mode than KeyAddr")
    raise Forwarded(read_reference(reader))


def write_failure(writer: CdrWriter, error: DevFailed) -> None:
    """Encode the body of a reply with USER_EXCEPTION."""
    writer.string(DEV_FAILED)
    write_errors(writer, error.errors)


def write_system_exception(writer: CdrWriter, error: SystemException) -> None:
    """Encode the body of a reply with SYSTEM_EXCEPTION."""
    writer.string(f"{_SYSTEM}{error.name}:1.0")
    writer.ulong(error.minor)
    writer.ulong(error.completed)
