"""The columns of a message and the DataFrame columns that fill them: plain data that travels to the tasks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """Names of the columns (as the DataFrame spells them) by their use; None = there is none.

    :ivar topic: column with the topic; or ``parts`` join to it; or the option ``topic`` gives it
    :ivar value: payload; without it the columns ``json`` become one JSON object
    :ivar headers_form: ``map``, ``multimap`` or ``kafka``
    :ivar id: message id
    :ivar trace: column with the ``traceparent`` of each row
    :ivar log: columns that go to the flight log
    :ivar stream: column with the stream of each row; None = all go to the stream of the options
    :ivar typed: columns that are packed with their types (``pack=arrow`` without a value); empty = none
    :ivar native: columns for the row codec of the bridge: (its name, name in the DataFrame); with them, only ``id`` and
        ``log`` are used
    """

    topic: str | None
    parts: tuple[tuple[str, str], ...]
    value: str | None
    json: tuple[str, ...]
    headers: str | None
    headers_form: str
    id: str | None
    log: tuple[str, ...]
    stream: str | None = None
    typed: tuple[str, ...] = ()
    native: tuple[tuple[str, str], ...] = ()
    trace: str | None = None
