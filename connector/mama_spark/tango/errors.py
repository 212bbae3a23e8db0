"""What can go wrong with a call of a Tango device. Code reads the flags of the base class, not names. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from ..errors import MamaError, Unavailable
from .types import DevError, Severity

DEV_FAILED = "IDL:Tango/DevFailed:1.0"


class TangoError(MamaError):
    """Base of all."""


class ServerAway(TangoError, Unavailable):
    """The server cannot be reached, or ended the connection before it took the call. Nothing was done."""


class CallLost(ServerAway):
    """The call went out and no answer came in time, or the connection ended first. It may have been done."""

    may_have_landed = True


class BadReply(TangoError):
    """What came back is no answer to this call. It may have been done."""

    may_have_landed = True


class DevFailed(TangoError):
    """The device, or Tango's libraries on its side, said no. Asking again does not help.

    :ivar errors: the stack, the first cause first (TG-18)
    """

    def __init__(self, errors: Sequence[DevError]) -> None:
        super().__init__("; ".join(f"{e.reason}: {e.desc}" for e in errors) or "DevFailed without a reason")
        self.errors = tuple(errors)

    @property
    def reason(self) -> str:
        """Of the first cause; empty if the stack is."""
        return self.errors[0].reason if self.errors else ""

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(error.reason for error in self.errors)


class DeviceAway(DevFailed):
    """The device is not there now, is starting, ending, or busy; or what it takes to answer is not there yet."""

    retryable = True


#: what passes without anybody changing the call: servers come and go, polling is started, the device gets free
_AWAY = frozenset(
    (
        "API_ShutdownInProgress", "API_ServerNotRunning", "API_DeviceNotExported", "API_CantConnectToDevice",
        "API_CorbaException", "API_DeviceTimedOut", "API_CommandTimedOut", "API_DeviceLocked", "API_PollObjNotFound",
        "API_UnableToAcquireLock", "API_AttributePollingNotStarted", "API_DeviceNotFound", "API_CantConnectToDatabase",
    )
)  # fmt: skip


def failed(errors: Sequence[DevError]) -> DevFailed:
    """The exception for a stack of errors; its first cause decides."""
    kind = DeviceAway if errors and errors[0].reason in _AWAY else DevFailed
    return kind(errors)


def refusal(reason: str, desc: str, origin: str) -> DevFailed:
    """A stack of one, as servers throw it."""
    return failed((DevError(reason, Severity.ERR, desc, origin),))


class Completed(IntEnum):
    """Whether the operation of a system exception was done."""

    YES = 0
    NO = 1
    MAYBE = 2


class SystemException(TangoError):
    """CORBA, not Tango, said no: the other side has no such operation, or could not read the call.

    :ivar name: as ``BAD_OPERATION``
    :ivar minor: the ORB's number for the reason
    """

    def __init__(self, name: str, minor: int = 0, completed: Completed = Completed.NO) -> None:
        super().__init__(f"{name} (minor {minor:#x}, completed {completed.name})")
        self.name, self.minor, self.completed = name, minor, completed


class ObjectAway(SystemException):
    """The object is not there, or the server cannot take calls now. Nothing was done."""

    retryable = True


class ObjectLost(SystemException):
    """As :class:`ObjectAway`, but it may have been done."""

    retryable = True
    may_have_landed = True


class SystemExceptionAfter(SystemException):
    """As :class:`SystemException`, but it may have been done."""

    may_have_landed = True


_PASSING = frozenset(
    (
        "TRANSIENT", "COMM_FAILURE", "TIMEOUT", "NO_RESPONSE", "NO_RESOURCES", "NO_MEMORY", "OBJECT_NOT_EXIST",
        "OBJ_ADAPTER",
    )
)  # fmt: skip
_CLASSES = {
    (False, False): SystemException,
    (False, True): SystemExceptionAfter,
    (True, False): ObjectAway,
    (True, True): ObjectLost,
}


def system_exception(name: str, minor: int, completed: Completed) -> SystemException:
    """The exception whose flags fit."""
    return _CLASSES[name in _PASSING, completed is not Completed.NO](name, minor, completed)
