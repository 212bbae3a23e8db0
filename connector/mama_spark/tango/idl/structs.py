"""Structures of the Tango IDL as CDR: attribute configurations, interface changes, data ready, commands, pipes. Pure.

The dataclass of a flat structure is the table that one decoder and one encoder follow. Decoding raises
:class:`CdrError` for data that is truncated or out of range, encoding for a value that does not fit its field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, get_type_hints

from ..giop.cdr import CdrError, CdrReader, CdrWriter
from ..types import AttributeConfig, CommandInfo, DataReady, InterfaceChange, PipeBlob, PipeData, PipeElement
from .values import read_time, read_union, write_time, write_union

#: most levels of nested blobs of a pipe; common pipes have two or three
MAX_DEPTH = 16
_ELEMENT_SIZE = 25  #: smallest encoded size of an element of a blob, in bytes


#: Type of a field -> how it is read and written.
_CODECS: dict[Any, tuple[Callable[[CdrReader], Any], Callable[[CdrWriter, Any], None]]] = {
    str: (CdrReader.text, CdrWriter.text),
    tuple[str, ...]: (lambda reader: tuple(reader.texts()), CdrWriter.texts),
    int: (CdrReader.long, CdrWriter.long),
    bool: (CdrReader.boolean, CdrWriter.boolean),
}


class Struct:
    """Structure of the IDL: the fields of a dataclass, in order.

    :param without: fields that an older version of the structure lacks
    :param least: smallest encoded size in bytes, of structures that come in sequences
    :ivar fields: name -> type: text, sequence of texts, long, boolean, an enumeration, or another structure
    """

    def __init__(self, cls: type[Any], without: str = "", *, least: int = 1) -> None:
        self.cls, self._least = cls, least
        lacking = without.split()
        self.fields = {name: kind for name, kind in get_type_hints(cls).items() if name not in lacking}
        self._codecs = [(name, *_codec(kind)) for name, kind in self.fields.items()]

    def read(self, reader: CdrReader) -> Any:
        return self.cls(**{name: read(reader) for name, read, _ in self._codecs})

    def write(self, writer: CdrWriter, value: Any) -> None:
        for name, _, write in self._codecs:
            write(writer, getattr(value, name))

    def read_all(self, reader: CdrReader) -> tuple[Any, ...]:
        return tuple(self.read(reader) for _ in range(reader.count(self._least)))

    def write_all(self, writer: CdrWriter, values: Sequence[Any]) -> None:
        writer.count(len(values))
        for value in values:
            self.write(writer, value)


def _codec(kind: Any) -> tuple[Callable[[CdrReader], Any], Callable[[CdrWriter, Any], None]]:
    if kind in _CODECS:
        return _CODECS[kind]
    if issubclass(kind, IntEnum):
        return lambda reader: reader.enum(kind), CdrWriter.ulong
    inner = Struct(kind)
    return inner.read, inner.write


DATA_READY = Struct(DataReady)
COMMAND_INFO = Struct(CommandInfo, least=37)
CONFIG_5 = Struct(AttributeConfig, least=200)
#: AttributeConfig_3, for clients of IDL 3 and 4
CONFIG_3 = Struct(AttributeConfig, "memorized mem_init root_attr_name enum_labels", least=200)


def read_interface(reader: CdrReader) -> InterfaceChange:
    """Decode DevIntrChange, the data of an interface change (TG-16)."""
    return InterfaceChange(reader.boolean(), COMMAND_INFO.read_all(reader), CONFIG_5.read_all(reader))


def write_interface(writer: CdrWriter, change: InterfaceChange) -> None:
    writer.boolean(change.dev_started)
    COMMAND_INFO.write_all(writer, change.cmds)
    CONFIG_5.write_all(writer, change.atts)


def read_pipe(reader: CdrReader) -> PipeData:
    """Decode DevPipeData, the data of a pipe event (TG-14), with at most :data:`MAX_DEPTH` levels of blobs."""
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
