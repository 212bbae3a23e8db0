"""Checks the options of ``mamadiscovery`` and makes the job that is pickled to its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mama_spark.contracts.bridge import DiscoveryBridge
from mama_spark.contracts.middlewares import MIDDLEWARES
from mama_spark.mama.discovery.discovery_rows import DiscoveryRowReader
from mama_spark.mama.messages.source_records import SourceFields
from mama_spark.mama.messages.status import Status, StatusError
from mama_spark.mama.properties import SUPPORTED
from mama_spark.options import DiscoveryOptions, Use
from mama_spark.publishing.window.reconnecting import ReconnectingBridge

from ..discovery_factory import make_discovery
from ..option_loading import read_options


@dataclass(frozen=True)
class DiscoveryJob:
    """Options and fields, pickled to the tasks."""

    options: DiscoveryOptions
    fields: SourceFields

    @property
    def reader(self) -> DiscoveryRowReader:
        if self.options.tango:
            from ...tango.rows.device_events import TangoReader

            return TangoReader.of(self.options, self.fields)
        if self.options.omnm:
            from ...openmama.rows.peer_events import OpenMamaReader

            return OpenMamaReader.of(self.options, self.fields)
        return DiscoveryRowReader.of(self.options, self.fields)

    def reconnecting_bridge(self) -> ReconnectingBridge[DiscoveryBridge]:
        o = self.options
        return ReconnectingBridge(lambda: make_discovery(o), o.wait_timeout)


def plan_discovery(options: Mapping[str, str], use: Use) -> DiscoveryJob:
    """Check the options; no I/O but that of the properties file.

    :param use: what Spark asks for
    :raises OptionError, ConfigError: something is wrong with them, or with the properties file
    :raises StatusError: NOT_IMPLEMENTED if the transport, or its bridge, has no source discovery
    """
    loaded = read_options(DiscoveryOptions, options, use)
    o = loaded.options
    loaded.discovery.require_support("mamadiscovery")
    if MIDDLEWARES[o.bridge_name].in_process:
        raise StatusError(
            Status.NOT_IMPLEMENTED,
            "the discovery of the bridge memory exists in its own process only, and Spark reads in others; no "
            f"{loaded.discovery.supported_key or f'mama.memory.transport.<name>.{SUPPORTED}'} changes that",
        )
    return DiscoveryJob(o, loaded.discovery.fields)
