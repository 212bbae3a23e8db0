"""Servant of the devices of an event source: executes CORBA requests and encodes their replies. Pure.

Devices implement IDL 5, which newer clients accept. Operations that an event source does not implement get the system
exception BAD_OPERATION; operations that write, configure or read a history get a DevFailed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import Completed, DevFailed, SystemException, refusal, system_exception
from ..giop import messages
from ..giop.cdr import CdrError, CdrReader, CdrWriter
from ..giop.typecode import STRING, VOID, TypeCode, write_any
from ..idl import structs
from ..idl.calls import (
    INFO,
    INFO_3,
    DeviceInfo,
    Operation,
    device_type,
    read_command,
    read_reading,
    write_failure,
    write_system_exception,
    write_values,
)
from ..idl.values import STATE
from ..topics import IDL
from ..types import NO_DIM, AttributeValue, CommandInfo, DevState, Format, PipeData, Quality, ValueKind
from .attribute_state import DEVICE_COMMANDS, AttributeState, DeviceState
from .dserver_servant import ADMIN_COMMANDS, AdminCall, Caller, Identity
from .event_supplier import EventSupplier

_ALL = frozenset(("all attributes", "all attributes_3"))
_OBJECT = "IDL:omg.org/CORBA/Object:1.0"
_TYPES = frozenset((_OBJECT, *(device_type(idl) for idl in range(1, IDL + 1))))


def _bad(name: str) -> SystemException:
    return system_exception(name, 0, Completed.NO)


class DeviceServant:
    """Executes requests. The caller holds the lock of the source. The returned bodies need no lock: they contain the
    state at the time of the call."""

    def __init__(self, supplier: EventSupplier, identity: Identity) -> None:
        self._supplier, self._identity = supplier, identity
        self._operations: dict[str, Callable[[_Call], messages.Body]] = {
            **dict.fromkeys((Operation.INFO, Operation.INFO_3), self._info),
            **dict.fromkeys((Operation.COMMAND, Operation.COMMAND_2, Operation.COMMAND_4), self._command),
            **dict.fromkeys((Operation.READ_3, Operation.READ_4, Operation.READ_5), self._read),
            **dict.fromkeys(("get_attribute_config_3", "get_attribute_config_5"), self._configs),
            Operation.IS_A: self._is_a,
            Operation.NON_EXISTENT: lambda call: _boolean(False),
            Operation.PING: lambda call: _no_result,
            Operation.NAME: lambda call: _text(call.name),
            Operation.ADM_NAME: lambda call: _text(supplier.admin),
            "_get_description": lambda call: _text(call.description),
            "_get_state": lambda call: lambda writer: writer.ulong(self._state(call)),
            "_get_status": lambda call: _text(self._status(call)),
            "black_box": lambda call: lambda writer: writer.strings(()),
            "command_list_query_2": self._command_list,
            "command_query_2": self._command_query,
            "get_pipe_config_5": lambda call: self._pipe_configs(call),
            "read_pipe_5": self._read_pipe,
            **dict.fromkeys(_REFUSED, self._refuse),
        }

    def has(self, key: bytes) -> bool:
        """Whether there is an object with this key."""
        name = key.decode("latin-1").lower()
        return name == self._supplier.admin or name in self._supplier.devices

    def execute(self, request: messages.GiopRequest, reader: CdrReader, caller: Caller, now: float) -> messages.Body:
        """Execute a request; returns a function that encodes its result.

        :param reader: reader at the start of the arguments
        :param now: seconds of a monotonic clock
        :raises DevFailed: the device refuses the call
        :raises SystemException: there is no such object or operation, or the arguments cannot be decoded
        """
        name = request.key.decode("latin-1").lower()
        if not self.has(request.key):
            raise _bad("OBJECT_NOT_EXIST")
        operation = self._operations.get(request.operation)
        if operation is None:
            raise _bad("BAD_OPERATION")
        device = self._supplier.devices.get(name)
        try:
            return operation(_Call(name, request.operation, reader, caller, now, device))
        except CdrError:
            raise _bad("MARSHAL") from None

    def _is_a(self, call: _Call) -> messages.Body:
        return _boolean(call.reader.string() in _TYPES)

    def _info(self, call: _Call) -> messages.Body:
        dev_class = call.device.declaration.dev_class if call.device else "DServer"
        info = DeviceInfo(
            dev_class, self._supplier.server, self._identity.host_name, IDL, "Doc URL = http://www.tango-controls.org",
            dev_class,
        )  # fmt: skip
        struct = INFO if call.operation == Operation.INFO else INFO_3
        return lambda writer: struct.write(writer, info)

    def _state(self, call: _Call) -> DevState:
        if call.device is None:
            return DevState.ON
        state = call.device.attributes["state"]
        found = state.reading.content(state.attribute.kind)
        return found if isinstance(found, DevState) else DevState.UNKNOWN

    def _status(self, call: _Call) -> str:
        if call.device is None:
            return "The device is ON"
        state = call.device.attributes["status"]
        found = state.reading.content(state.attribute.kind)
        return str(found[0]) if isinstance(found, tuple) and found else ""

    def _read(self, call: _Call) -> messages.Body:
        names = read_reading(call.reader, call.operation).names
        attributes = call.attributes()
        values: list[AttributeValue] = []
        for name in names:
            state = attributes.get(name.lower())
            values.append(state.reading.value(state.attribute) if state else _unknown_value(call.name, name))
        return lambda writer: write_values(writer, values, call.operation)

    def _configs(self, call: _Call) -> messages.Body:
        names = call.reader.strings()
        attributes = call.attributes()
        if len(names) == 1 and names[0].lower() in _ALL:
            found = [state.config for state in attributes.values()]
        else:
            for name in names:
                if name.lower() not in attributes:
                    raise _no_attribute(call.name, name, call.operation)
            found = [attributes[name.lower()].config for name in names]
        struct = structs.CONFIG_5 if call.operation.endswith("5") else structs.CONFIG_3
        return lambda writer: struct.write_all(writer, found)

    def _pipe_configs(self, call: _Call) -> messages.Body:
        names = call.reader.strings()
        existing = sorted(call.device.pipes) if call.device else []
        selected = existing if len(names) == 1 and names[0].lower() == "all pipes" else names
        for name in selected:
            if name.lower() not in existing:
                raise refusal("API_PipeNotFound", f"{call.name} has no pipe {name:.200}", call.operation)

        def write(writer: CdrWriter) -> None:  # PipeConfig: name, description, label, level, writable, extensions
            writer.count(len(selected))
            for name in selected:
                for text in (name, "No description", name):
                    writer.text(text)
                writer.ulong(0)
                writer.ulong(0)
                writer.strings(())

        return write

    def _read_pipe(self, call: _Call) -> messages.Body:
        name = call.reader.string()
        found = call.device.pipes.get(name.lower()) if call.device else None
        if found is None:
            raise refusal("API_PipeNotFound", f"{call.name} has no pipe {name:.200}", call.operation)
        if found[1] is None:
            raise refusal("API_PipeValueNotSet", f"{name} of {call.name} has no value yet", call.operation)
        pipe: PipeData = found[1]
        return lambda writer: structs.write_pipe(writer, pipe)

    def _commands(self, call: _Call) -> tuple[CommandInfo, ...]:
        return ADMIN_COMMANDS if call.device is None else DEVICE_COMMANDS

    def _command_list(self, call: _Call) -> messages.Body:
        found = self._commands(call)
        return lambda writer: structs.COMMAND_INFO.write_all(writer, found)

    def _command_query(self, call: _Call) -> messages.Body:
        name = call.reader.string()
        for command in self._commands(call):
            if command.cmd_name.lower() == name.lower():
                return lambda writer, found=command: structs.COMMAND_INFO.write(writer, found)  # type: ignore[misc]
        raise _no_command(call, name)

    def _command(self, call: _Call) -> messages.Body:
        command = read_command(call.reader, call.operation)
        name = command.name.lower()
        if call.device is None:
            found = AdminCall(self._supplier, self._identity, call.caller, call.now, command).execute()
            if found is not None:
                return _any(*found)
        elif name == "init":
            return _any(VOID, None)
        if name == "state":
            return _any(STATE, int(self._state(call)))
        if name == "status":
            return _any(STRING, self._status(call))
        raise _no_command(call, command.name)

    def _refuse(self, call: _Call) -> messages.Body:
        reason, text = _REFUSED[call.operation]
        raise refusal(reason, f"{call.name} {text}", call.operation)


@dataclass(frozen=True, slots=True)
class _Call:
    """One call, ``now`` in seconds of a monotonic clock; ``device`` is None for the admin device."""

    name: str
    operation: str
    reader: CdrReader
    caller: Caller
    now: float
    device: DeviceState | None

    @property
    def description(self) -> str:
        return self.device.declaration.description if self.device else "A device server device !!"

    def attributes(self) -> dict[str, AttributeState]:
        return self.device.attributes if self.device else {}


_WRITING = ("API_AttrNotWritable", "cannot be written: it is a device of an event source")
_CONFIGURING = ("API_NotSupported", "cannot be configured by clients")
_REFUSED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("write_attributes", "write_attributes_3", "write_attributes_4"), _WRITING),
    **dict.fromkeys(("write_read_attributes_4", "write_read_attributes_5"), _WRITING),
    **dict.fromkeys((f"set_attribute_config{end}" for end in ("", "_3", "_4", "_5")), _CONFIGURING),
    **dict.fromkeys(("set_pipe_config_5", "write_pipe_5", "write_read_pipe_5"), _CONFIGURING),
    **dict.fromkeys(
        (f"read_attribute_history_{end}" for end in (2, 3, 4, 5)), ("API_AttrNotPolled", "keeps no history")
    ),
    **dict.fromkeys((f"command_inout_history_{end}" for end in (2, 4)), ("API_CmdNotPolled", "keeps no history")),
}


def _no_result(writer: CdrWriter) -> None:
    """Encode no result."""


def _boolean(value: bool) -> messages.Body:
    return lambda writer: writer.boolean(value)


def _text(text: str) -> messages.Body:
    return lambda writer: writer.text(text)


def _any(code: TypeCode, value: Any) -> messages.Body:
    return lambda writer: write_any(writer, code, value)


def _no_attribute(device: str, name: str, origin: str) -> DevFailed:
    return refusal("API_AttrNotFound", f"{device} has no attribute {name:.200}", origin)


def _no_command(call: _Call, name: str) -> DevFailed:
    return refusal("API_CommandNotFound", f"{call.name} has no command {name:.200}", call.operation)


def _unknown_value(device: str, name: str) -> AttributeValue:
    """The value of an attribute that does not exist, in a read of several."""
    errors = _no_attribute(device, name, Operation.READ_5).errors
    return AttributeValue(
        name[:200], ValueKind.NO_DATA, None, 0, Quality.INVALID, Format.SCALAR, 0, NO_DIM, NO_DIM, errors
    )


def reply(request: messages.GiopRequest, body: messages.Body) -> bytes:
    """Encode a reply with a result, in GIOP version and byte order of the request."""
    found = messages.GiopReply(request.minor, request.little, id=request.id)
    try:
        return messages.encode(found, body)
    except CdrError:
        return reply_exception(request, _bad("MARSHAL"))


def reply_exception(request: messages.GiopRequest, error: DevFailed | SystemException) -> bytes:
    """Encode a reply with an exception, in GIOP version and byte order of the request."""
    user = isinstance(error, DevFailed)
    status = messages.ReplyStatus.USER_EXCEPTION if user else messages.ReplyStatus.SYSTEM_EXCEPTION
    found = messages.GiopReply(request.minor, request.little, id=request.id, status=status)
    if isinstance(error, DevFailed):
        return messages.encode(found, lambda writer: write_failure(writer, error))
    return messages.encode(found, lambda writer: write_system_exception(writer, error))


def locate_reply(request: messages.LocateRequest, here: bool) -> bytes:
    """Encode the reply to a LocateRequest: whether an object with its key is ``here``."""
    status = messages.LocateStatus.OBJECT_HERE if here else messages.LocateStatus.UNKNOWN_OBJECT
    return messages.encode(messages.LocateReply(request.minor, request.little, id=request.id, status=status))
