"""The callbacks of a publisher, frozen when the publisher is created."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..messages.status import Status

#: ``(publisher, closure)``
OnLifecycle = Callable[[Any, Any], None]
#: ``(publisher, status, info, closure)``
OnAnswer = Callable[[Any, Status, str, Any], None]


class PublisherCallbacks:
    """``mamaPublisherCallbacks``; any of them may be None.

    :param on_create: ``(publisher, closure)``: the publisher is LIVE; on the thread that creates it
    :param on_error: ``(publisher, status, info, closure)``: a send failed after it returned (PE-32); ``info`` is the
        middleware's text, for logs
    :param on_destroy: ``(publisher, closure)``: the publisher is destroyed; on the thread that destroys it
    :param on_success: ``(publisher, status, info, closure)``: a send was acknowledged; ``info`` has stream and sequence
    """

    __slots__ = ("_frozen", "on_create", "on_destroy", "on_error", "on_success")
    _frozen: bool
    on_create: OnLifecycle | None
    on_error: OnAnswer | None
    on_destroy: OnLifecycle | None
    on_success: OnAnswer | None

    def __init__(
        self,
        *,
        on_create: OnLifecycle | None = None,
        on_error: OnAnswer | None = None,
        on_destroy: OnLifecycle | None = None,
        on_success: OnAnswer | None = None,
    ) -> None:
        object.__setattr__(self, "_frozen", False)
        self.on_create, self.on_error = on_create, on_error
        self.on_destroy, self.on_success = on_destroy, on_success

    def __setattr__(self, name: str, value: Any) -> None:
        if self._frozen:
            raise AttributeError(f"the callbacks of a publisher cannot be changed after its create ({name})")
        if value is not None and not callable(value):
            raise TypeError(f"{name} must be callable or None, got {type(value).__name__}")
        object.__setattr__(self, name, value)

    def frozen(self) -> PublisherCallbacks:
        """A copy that cannot be changed."""
        copy = PublisherCallbacks(
            on_create=self.on_create, on_error=self.on_error, on_destroy=self.on_destroy, on_success=self.on_success
        )
        object.__setattr__(copy, "_frozen", True)
        return copy

    def close(self) -> None:
        """``mamaPublisherCallbacks_deallocate``: does nothing."""

    def __repr__(self) -> str:
        given = [name for name in self.__slots__[1:] if getattr(self, name) is not None]
        return f"<PublisherCallbacks {', '.join(given) or 'none'}>"
