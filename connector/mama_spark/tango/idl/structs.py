"""Structures of the Tango IDL as CDR: attribute configurations, interface changes, data ready, commands, pipes. Pure.

A flat structure is a table of its fields; one decoder and one encoder follow the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ..giop.cdr import CdrError, CdrReader, CdrWriter
from ..types import (
    AlarmLimits,
    ArchiveCriteria,
    AttributeConfig,
    ChangeCriteria,
    CommandInfo,
    DataReady,
    Format,
    InterfaceChange,
    PeriodicCriteria,
    PipeBlob,
    PipeData,
    PipeElement,
    Writable,
)
from .union import read_enum, read_union, write_union
from .values import read_time, write_time

#: most levels of nested blobs of a pipe; common pipes have two or three
MAX_DEPTH = 16
#: smallest encoded size of a command, an attribute configuration, and an element of a blob, in octets
_COMMAND_SIZE, CONFIG_SIZE, _ELEMENT_SIZE = 37, 200, 25


@dataclass(frozen=True, slots=True)
class Struct:
    """Structure of the IDL: its fields, in order.

    Types are ``s`` text, ``S`` sequence of texts, ``l`` long, ``b`` boolean, an enumeration, or another structure.
    """

    cls: type[Any]
    fields: tuple[tuple[str, str | type[IntEnum] | Struct], ...]

    def read(self, reader: CdrReader) -> Any:
        """Decode a structure.

        :raises CdrError: the data is truncated, or a value is out of range
        """
        return self.cls(**{name: _read(reader, code) for name, code in self.fields})

    def write(self, writer: CdrWriter, value: Any) -> None:
        """The inverse of :meth:`read`.

        :raises CdrError: a value does not fit its field
        """
        for name, code in self.fields:
            _write(writer, code, getattr(value, name))


_READ: dict[str, Callable[[CdrReader], Any]] = {
    "s": CdrReader.text,
    "S": lambda reader: tuple(reader.texts()),
    "l": CdrReader.long,
    "b": CdrReader.boolean,
}
_WRITE: dict[str, Callable[[CdrWriter, Any], None]] = {
    "s": CdrWriter.text,
    "S": CdrWriter.texts,
    "l": CdrWriter.long,
    "b": CdrWriter.boolean,
}


def _read(reader: CdrReader, code: str | type[IntEnum] | Struct) -> Any:
    if isinstance(code, str):
        return _READ[code](reader)
    return code.read(reader) if isinstance(code, Struct) else read_enum(reader, code)


def _write(writer: CdrWriter, code: str | type[IntEnum] | Struct, value: Any) -> None:
    if isinstance(code, str):
        _WRITE[code](writer, value)
    elif isinstance(code, Struct):
        code.write(writer, value)
    else:
        writer.ulong(value)


def _fields(code: str, names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, code) for name in names.split())


ALARM_LIMITS = Struct(
    AlarmLimits,
    (*_fields("s", "min_alarm max_alarm min_warning max_warning delta_t delta_val"), ("extensions", "S")),
)
CHANGE_CRITERIA = Struct(ChangeCriteria, (*_fields("s", "rel_change abs_change"), ("extensions", "S")))
PERIODIC_CRITERIA = Struct(PeriodicCriteria, (("period", "s"), ("extensions", "S")))
ARCHIVE_CRITERIA = Struct(ArchiveCriteria, (*_fields("s", "rel_change abs_change period"), ("extensions", "S")))
DATA_READY = Struct(DataReady, (("name", "s"), ("data_type", "l"), ("ctr", "l")))
COMMAND_INFO = Struct(
    CommandInfo, (("cmd_name", "s"), *_fields("l", "level cmd_tag in_type out_type"),
                  *_fields("s", "in_type_desc out_type_desc")),
)  # fmt: skip

_CONFIG_BEGIN: tuple[tuple[str, str | type[IntEnum] | Struct], ...] = (
    ("name", "s"),
    ("writable", Writable),
    ("data_format", Format),
    ("data_type", "l"),
)
_CONFIG_MIDDLE: tuple[tuple[str, str | type[IntEnum] | Struct], ...] = (
    *_fields("l", "max_dim_x max_dim_y"),
    *_fields("s", "description label unit standard_unit display_unit format min_value max_value writable_attr_name"),
    ("level", "l"),
)
_CONFIG_END: tuple[tuple[str, str | type[IntEnum] | Struct], ...] = (
    ("att_alarm", ALARM_LIMITS),
    ("ch_event", CHANGE_CRITERIA),
    ("per_event", PERIODIC_CRITERIA),
    ("arch_event", ARCHIVE_CRITERIA),
    *_fields("S", "extensions sys_extensions"),
)
CONFIG_5 = Struct(
    AttributeConfig, (*_CONFIG_BEGIN, *_fields("b", "memorized mem_init"), *_CONFIG_MIDDLE,
                      ("root_attr_name", "s"), ("enum_labels", "S"), *_CONFIG_END),
)  # fmt: skip
#: AttributeConfig_3, for clients of IDL 3 and 4
CONFIG_3 = Struct(AttributeConfig, (*_CONFIG_BEGIN, *_CONFIG_MIDDLE, *_CONFIG_END))


def read_commands(reader: CdrReader) -> tuple[CommandInfo, ...]:
    """Decode DevCmdInfoList_2, the result of ``command_list_query_2``.

    :raises CdrError: the data is truncated
    """
    return tuple(COMMAND_INFO.read(reader) for _ in range(reader.count(_COMMAND_SIZE)))


def write_commands(writer: CdrWriter, commands: Sequence[CommandInfo]) -> None:
    """The inverse of :func:`read_commands`."""
    writer.count(len(commands))
    for command in commands:
        COMMAND_INFO.write(writer, command)


def read_interface(reader: CdrReader) -> InterfaceChange:
    """Decode DevIntrChange, the data of an interface change (TG-16).

    :raises CdrError: the data is truncated
    """
    started, commands = reader.boolean(), read_commands(reader)
    return InterfaceChange(started, commands, tuple(CONFIG_5.read(reader) for _ in range(reader.count(CONFIG_SIZE))))


def write_interface(writer: CdrWriter, change: InterfaceChange) -> None:
    """The inverse of :func:`read_interface`."""
    writer.boolean(change.dev_started)
    write_commands(writer, change.cmds)
    writer.count(len(change.atts))
    for attribute in change.atts:
        CONFIG_5.write(writer, attribute)


def read_pipe(reader: CdrReader) -> PipeData:
    """Decode DevPipeData, the data of a pipe event (TG-14).

    :raises CdrError: the data is truncated, or has more than :data:`MAX_DEPTH` levels of blobs
    """
    return PipeData(reader.text(), read_time(reader), PipeBlob(reader.text(), _read_elements(reader, MAX_DEPTH)))


def _read_elements(reader: CdrReader, depth: int) -> tuple[PipeElement, ...]:
    count = reader.count(_ELEMENT_SIZE)
    if count and not depth:
        raise CdrError(f"a pipe with more than {MAX_DEPTH} levels of nested blobs")
    elements = []
    for _ in range(count):
        name, (kind, content) = reader.text(), read_union(reader)
        elements.append(PipeElement(name, kind, content, _read_elements(reader, depth - 1), reader.text()))
    return tuple(elements)


def write_pipe(writer: CdrWriter, pipe: PipeData) -> None:
    """The inverse of :func:`read_pipe`."""
    writer.text(pipe.name)
    write_time(writer, pipe.time)
    writer.text(pipe.blob.name)
    _write_elements(writer, pipe.blob.elements, MAX_DEPTH)


def _write_elements(writer: CdrWriter, elements: tuple[PipeElement, ...], depth: int) -> None:
    if elements and not depth:
        raise CdrError(f"a pipe with more than {MAX_DEPTH} levels of nested blobs")
    writer.count(len(elements))
    for element in elements:
        writer.text(element.name)
        write_union(writer, element.kind, element.content)
        _write_elements(writer, element.inner, depth - 1)
        writer.text(element.inner_blob_name)
