"""What an event source answers: each call of a client becomes a reply, or an exception that says why not. Pure.

Clients ask who a device is, negotiate subscriptions with the admin device, confirm them, read attributes, and look
around. Devices are of IDL 5, which newer clients take. Operations that a source does not have are answered with
BAD_OPERATION, writing and locking with a DevFailed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mama_spark.tango.errors import Completed, DevFailed, SystemException, refusal, system_exception
from mama_spark.tango.giop import messages
from mama_spark.tango.giop.cdr import CdrError, CdrReader, CdrWriter
from mama_spark.tango.giop.typecode import STRING, VOID, TypeCode, TypeKind, write_any
from mama_spark.tango.idl import structs
from mama_spark.tango.idl.calls import (
    DeviceInfo,
    Operation,
    device_type,
    read_command,
    read_reading,
    write_failure,
    write_info,
    write_system_exception,
    write_values,
)
from mama_spark.tango.types import (
    NO_DIM,
    AttributeValue,
    CommandInfo,
    DevState,
    Format,
    PipeData,
    Quality,
    ValueKind,
)

from .attribute_state import AttributeState, DeviceState
from .commands import ADMIN_COMMANDS, DEVICE_COMMANDS
from .dserver_servant import IDL, Caller, DServerServant, Identity
from .event_supplier import EventSupplier

_ALL = frozenset(("all attributes", "all attributes_3"))
_OBJECT = "IDL:omg.org/CORBA/Object:1.0"
_TYPES = frozenset((_OBJECT, *(device_type(idl) for idl in range(1, IDL + 1))))
_STATE_TYPE = TypeCode(
    TypeKind.ENUM, "IDL:Tango/DevState:1.0", "DevState", tuple(state.name for state in DevState)
)  # fmt: skip


def _bad(name: str) -> SystemException:
    return system_exception(name, 0, Completed.NO)


class DeviceServant:
    """Answers requests from what the board knows. Called with the lock of the source held; the bodies it gives write
    what was true then, without the lock."""

    def __init__(self, board: EventSupplier, identity: Identity) -> None:
        self._board, self._identity = board, identity
        self._admin = DServerServant(board, identity)
        self._operations: dict[str, Callable[[_Call], messages.Body]] = {
            **dict.fromkeys((Operation.INFO, "info_3"), self._info),
            **dict.fromkeys((Operation.COMMAND, Operation.COMMAND_2, Operation.COMMAND_4), self._command),
            **dict.fromkeys((Operation.READ_3, Operation.READ_4, Operation.READ_5), self._read),
            **dict.fromkeys(("get_attribute_config_3", "get_attribute_config_5"), self._configs),
            Operation.IS_A: self._is_a,
            Operation.NON_EXISTENT: lambda call: _boolean(False),
            Operation.PING: lambda call: _nothing,
            Operation.NAME: lambda call: _string(call.name),
            Operation.ADM_NAME: lambda call: _string(board.admin),
            "_get_description": lambda call: _string(call.description),
            "_get_state": lambda call: lambda writer: writer.ulong(self._state(call)),
            "_get_status": lambda call: _string(self._status(call)),
            "black_box": lambda call: lambda writer: writer.strings(()),
            "command_list_query_2": self._command_list,
            "command_query_2": self._command_query,
            "get_pipe_config_5": lambda call: self._pipe_configs(call),
            "read_pipe_5": self._read_pipe,
            **dict.fromkeys(_REFUSED, self._refuse),
        }

    def has(self, key: bytes) -> bool:
        """Whether the object is here."""
        name = key.decode("latin-1").lower()
        return name == self._board.admin or name in self._board.devices

    def answer(self, request: messages.GiopRequest, reader: CdrReader, caller: Caller, now: float) -> messages.Body:
        """What writes the result of a call.

        :raises DevFailed: the device says no
        :raises SystemException: there is no such object or operation, or the arguments cannot be read
        """
        name = request.key.decode("latin-1").lower()
        if not self.has(request.key):
            raise _bad("OBJECT_NOT_EXIST")
        operation = self._operations.get(request.operation)
        if operation is None:
            raise _bad("BAD_OPERATION")
        state = self._board.devices.get(name)
        try:
            return operation(_Call(name, request.operation, reader, caller, now, state))
        except CdrError:
            raise _bad("MARSHAL") from None

    # --- who it is ---

    def _is_a(self, call: _Call) -> messages.Body:
        return _boolean(call.reader.string() in _TYPES)

    def _info(self, call: _Call) -> messages.Body:
        dev_class = call.state.device.dev_class if call.state else "DServer"
        info = DeviceInfo(
            dev_class, self._board.server, self._identity.host_name, IDL, "Doc URL = http://www.tango-controls.org",
            dev_class,
        )  # fmt: skip
        return lambda writer: write_info(writer, info, call.operation)

    def _state(self, call: _Call) -> DevState:
        if call.state is None:
            return DevState.ON
        found = call.state.slots["state"].reading.content(call.state.slots["state"].attribute.kind)
        return found if isinstance(found, DevState) else DevState.UNKNOWN

    def _status(self, call: _Call) -> str:
        if call.state is None:
            return "The device is ON"
        slot = call.state.slots["status"]
        found = slot.reading.content(slot.attribute.kind)
        return str(found[0]) if isinstance(found, tuple) and found else ""

    # --- attributes ---

    def _read(self, call: _Call) -> messages.Body:
        names = read_reading(call.reader, call.operation).names
        slots = call.slots()
        values: list[AttributeValue] = []
        for name in names:
            slot = slots.get(name.lower())
            values.append(slot.reading.value(slot.attribute) if slot else _unknown_value(call.name, name))
        return lambda writer: write_values(writer, values, call.operation)

    def _configs(self, call: _Call) -> messages.Body:
        names = call.reader.strings()
        slots = call.slots()
        if len(names) == 1 and names[0].lower() in _ALL:
            found = [slot.config for slot in slots.values()]
        else:
            for name in names:
                if name.lower() not in slots:
                    raise _no_attribute(call.name, name, call.operation)
            found = [slots[name.lower()].config for name in names]
        form = structs.CONFIG_5 if call.operation.endswith("5") else structs.CONFIG_3

        def write(writer: CdrWriter) -> None:
            writer.count(len(found))
            for config in found:
                form.write(writer, config)

        return write

    # --- pipes ---

    def _pipe_configs(self, call: _Call) -> messages.Body:
        names = call.reader.strings()
        have = sorted(call.state.pipes) if call.state else []
        wanted = have if len(names) == 1 and names[0].lower() == "all pipes" else names
        for name in wanted:
            if name.lower() not in have:
                raise refusal("API_PipeNotFound", f"{call.name} has no pipe {name:.200}", call.operation)

        def write(writer: CdrWriter) -> None:  # PipeConfig: name, description, label, level, writable, extensions
            writer.count(len(wanted))
            for name in wanted:
                for text in (name, "No description", name):
                    writer.string(text)
                writer.ulong(0)
                writer.ulong(0)
                writer.strings(())

        return write

    def _read_pipe(self, call: _Call) -> messages.Body:
        name = call.reader.string()
        found = call.state.pipes.get(name.lower()) if call.state else None
        if found is None:
            raise refusal("API_PipeNotFound", f"{call.name} has no pipe {name:.200}", call.operation)
        if found[1] is None:
            raise refusal("API_PipeValueNotSet", f"{name} of {call.name} has no value yet", call.operation)
        pipe: PipeData = found[1]
        return lambda writer: structs.write_pipe(writer, pipe)

    # --- commands ---

    def _commands(self, call: _Call) -> tuple[CommandInfo, ...]:
        return ADMIN_COMMANDS if call.state is None else DEVICE_COMMANDS

    def _command_list(self, call: _Call) -> messages.Body:
        found = self._commands(call)

        def write(writer: CdrWriter) -> None:
            writer.count(len(found))
            for command in found:
                structs.COMMAND_INFO.write(writer, command)

        return write

    def _command_query(self, call: _Call) -> messages.Body:
        name = call.reader.string()
        for command in self._commands(call):
            if command.cmd_name.lower() == name.lower():
                return lambda writer, found=command: structs.COMMAND_INFO.write(writer, found)  # type: ignore[misc]
        raise _no_command(call, name)

    def _command(self, call: _Call) -> messages.Body:
        given = read_command(call.reader, call.operation)
        name = given.name.lower()
        if call.state is None:
            found = self._admin.command(call.caller, call.now, given)
            if found is not None:
                return _any(*found)
        elif name == "init":
            return _any(VOID, None)
        if name == "state":
            return _any(_STATE_TYPE, int(self._state(call)))
        if name == "status":
            return _any(STRING, self._status(call))
        raise _no_command(call, given.name)

    def _refuse(self, call: _Call) -> messages.Body:
        reason, why = _REFUSED[call.operation]
        raise refusal(reason, f"{call.name} {why}", call.operation)


@dataclass(frozen=True, slots=True)
class _Call:
    """One call.

    :ivar state: of the device; None: the admin device
    """

    name: str
    operation: str
    reader: CdrReader
    caller: Caller
    now: float
    state: DeviceState | None

    @property
    def description(self) -> str:
        return self.state.device.description if self.state else "A device server device !!"

    def slots(self) -> dict[str, AttributeState]:
        return self.state.slots if self.state else {}


_WRITING = ("API_AttrNotWritable", "takes no values: it is an event source")
_CONFIGURING = ("API_NotSupported", "is configured by its program alone")
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


def _nothing(writer: CdrWriter) -> None:
    """Operations without a result."""


def _boolean(value: bool) -> messages.Body:
    return lambda writer: writer.boolean(value)


def _string(text: str) -> messages.Body:
    return lambda writer: writer.string(text)


def _any(code: TypeCode, value: Any) -> messages.Body:
    return lambda writer: write_any(writer, code, value)


def _no_attribute(device: str, name: str, origin: str) -> DevFailed:
    return refusal("API_AttrNotFound", f"{device} has no attribute {name:.200}", origin)


def _no_command(call: _Call, name: str) -> DevFailed:
    return refusal("API_CommandNotFound", f"{call.name} has no command {name:.200}", call.operation)


def _unknown_value(device: str, name: str) -> AttributeValue:
    """As devices answer for an attribute that they have not, among others that they have."""
    errors = _no_attribute(device, name, Operation.READ_5).errors
    return AttributeValue(
        name[:200], ValueKind.NO_DATA, None, 0, Quality.INVALID, Format.SCALAR, 0, NO_DIM, NO_DIM, errors
    )


def reply(request: messages.GiopRequest, body: messages.Body) -> bytes:
    """The octets of a result, in the version and order that was asked in."""
    found = messages.GiopReply(request.minor, request.little, id=request.id)
    try:
        return messages.encode(found, body)
    except CdrError:
        return reply_exception(request, _bad("MARSHAL"))


def reply_exception(request: messages.GiopRequest, error: DevFailed | SystemException) -> bytes:
    """The octets of a reply that is an exception."""
    user = isinstance(error, DevFailed)
    status = messages.ReplyStatus.USER_EXCEPTION if user else messages.ReplyStatus.SYSTEM_EXCEPTION
    found = messages.GiopReply(request.minor, request.little, id=request.id, status=status)
    if isinstance(error, DevFailed):
        return messages.encode(found, lambda writer: write_failure(writer, error))
    return messages.encode(found, lambda writer: write_system_exception(writer, error))


def locate_reply(request: messages.LocateRequest, here: bool) -> bytes:
    """The octets of the answer."""
    status = messages.LocateStatus.OBJECT_HERE if here else messages.LocateStatus.UNKNOWN_OBJECT
    return messages.encode(messages.LocateReply(request.minor, request.little, id=request.id, status=status))
