"""Our event source in a process of its own, for tests that kill it or stop it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.tango_processes.servers import _Server


class SourceProcess(_Server):
    """A source with one device, whose attributes are doubles, 0.0 at first.

    :param settings: more parameters of :class:`~mama_spark.tango.source.event_source.TangoEventSource`
    """

    module = "tests.support.tango_processes.source_child"
    key = "dserver/mama/source"

    def __init__(self, folder: Path | str, attributes: Sequence[str] = ("level",), **settings: Any) -> None:
        super().__init__(folder, None, 0)
        self.device, self.attributes, self.settings = "test/pub/1", list(attributes), settings

    def arguments(self) -> Sequence[str]:
        given = {"device": self.device, "attributes": self.attributes, "port": self.port, "settings": self.settings}
        return [json.dumps(given)]

    @property
    def address(self) -> str:
        return f"tango://127.0.0.1:{self.port}/{self.device}#dbase=no"

    def push(self, attribute: str, value: float) -> None:
        self.call("push", attribute=attribute, value=value)
