"""Errors of calls to Tango devices. Code reads the flags ``retryable`` and ``may_have_landed``, not names. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from ..contracts.errors import MamaError, Unavailable
from .types import DevError, Severity

DEV_FAILED = "IDL:Tango/DevFailed:1.0"


class TangoError(MamaError):
    """Base of all errors of this package's calls."""


class ServerAway(TangoError, Unavailable):
    """The server cannot be reached, or the connection ended before the call was sent. It was not executed."""


class CallLost(ServerAway):
    """The call was sent, and no reply arrived in time. It may have been executed."""

    may_have_landed = True


class BadReply(TangoError):
    """The reply cannot be read. The call may have been executed."""

    may_have_landed = True


class DevFailed(TangoError):
    """The device, or the Tango library of its server, refused: repeating the call does not help. ``errors`` is the
    stack, the first cause first (TG-18)."""

    def __init__(self, errors: Sequence[DevError]) -> None:
        super().__init__("; ".join(f"{e.reason}: {e.desc}" for e in errors) or "DevFailed without a reason")
        self.errors = tuple(errors)

    @property
    def reason(self) -> str:
        """Reason of the first cause; empty if the stack is."""
        return self.errors[0].reason if self.errors else ""

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(error.reason for error in self.errors)


class DeviceAway(DevFailed):
    """The device is not available now: it is starting, ending, or busy, or not polled yet."""

    retryable = True


#: Reasons that are temporary: servers come and go, polling is started, devices are unlocked.
_AWAY = frozenset(
    (
        "API_ShutdownInProgress", "API_ServerNotRunning", "API_DeviceNotExported", "API_CantConnectToDevice",
        "API_CorbaException", "API_DeviceTimedOut", "API_CommandTimedOut", "API_DeviceLocked", "API_PollObjNotFound",
        "API_UnableToAcquireLock", "API_AttributePollingNotStarted", "API_DeviceNotFound", "API_CantConnectToDatabase",
    )
)  # fmt: skip


def failed(errors: Sequence[DevError]) -> DevFailed:
    """The exception for a stack of errors, by its first cause."""
    kind = DeviceAway if errors and errors[0].reason in _AWAY else DevFailed
    return kind(errors)


def refusal(reason: str, desc: str, origin: str) -> DevFailed:
    return failed((DevError(reason, Severity.ERR, desc, origin),))


class Completed(IntEnum):
    """CompletionStatus: whether the operation was executed before the system exception."""

    YES = 0
    NO = 1
    MAYBE = 2


class SystemException(TangoError):
    """The ORB refused: the peer has no such operation, or could not read the call. ``name`` is as ``BAD_OPERATION``,
    ``minor`` the ORB's number for the reason."""

    def __init__(self, name: str, minor: int = 0, completed: Completed = Completed.NO) -> None:
        super().__init__(f"{name} (minor {minor:#x}, completed {completed.name})")
        self.name, self.minor, self.completed = name, minor, completed


class ObjectAway(SystemException):
    """The object does not exist now, or the server cannot take calls now. The call was not executed."""

    retryable = True


class ObjectLost(SystemException):
    """Like :class:`ObjectAway`, but the call may have been executed."""

    retryable = True
    may_have_landed = True


class SystemExceptionAfter(SystemException):
    """A :class:`SystemException` whose call may have been executed."""

    may_have_landed = True


_TEMPORARY = frozenset(
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
    return _CLASSES[name in _TEMPORARY, completed is not Completed.NO](name, minor, completed)
