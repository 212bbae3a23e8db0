"""Who hears that the permissions of a connection forbid a subject."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


class Denials:
    """Of one connection.

    :ivar handlers: tried where nobody waits for the subject: kind and subject; True: it was this one's
    """

    def __init__(self) -> None:
        self._watches: list[tuple[str, Callable[[], None]]] = []
        self.handlers: list[Callable[[str, str], bool]] = []

    @contextlib.contextmanager
    def watch(self, subject: str, tell: Callable[[], None]) -> Iterator[None]:
        """Call ``tell`` when the server reports ``subject`` as forbidden."""
        watch = subject, tell
        self._watches.append(watch)
        try:
            yield
        finally:
            self._watches.remove(watch)

    def tell(self, kind: str, subject: str) -> bool:
        """Whether anybody is concerned."""
        watching = [tell for watched, tell in list(self._watches) if watched == subject]
        for tell in watching:
            tell()
        return bool(watching) or any(handled(kind, subject) for handled in list(self.handlers))
