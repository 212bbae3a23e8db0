"""Parses the options of a format, completed by a ``transport`` of a ``mama.properties`` file, and makes the discovery
bridge that they name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..contracts.bridge import DiscoveryBridge
from ..mama.messages.source_records import DEFAULT_FIELDS, SourceFields
from ..mama.messages.status import Status, StatusError
from ..mama.properties import expand
from ..options import TransportOptions
from ..options.declare import keeps_tables, option_names
from ..options.nats_environment import with_nats_environment
from ..options.scopes import Use
from ..registry import UnsupportedFeature, discovery_bridge
from .session_defaults import with_session_defaults

O = TypeVar("O", bound=TransportOptions)  # noqa: E741 - as everywhere, options are o


@dataclass(frozen=True, slots=True)
class DiscoveryProperties:
    """Discovery settings of a properties file; plain data that is pickled to the tasks.

    :ivar supported: property ``supported_key`` of the transport; None = no transport was named, and the bridge decides
    """

    fields: SourceFields = DEFAULT_FIELDS
    supported: bool | None = None
    supported_key: str = ""

    def require_support(self, what: str) -> None:
        """Check that the transport supports source discovery.

        :raises StatusError: NOT_IMPLEMENTED: the transport does not support source discovery (SD-18, SD-50)
        """
        if self.supported is False:
            raise StatusError(
                Status.NOT_IMPLEMENTED,
                f"{what} needs source discovery, and {self.supported_key} is not true in the properties file",
            )


@dataclass(frozen=True, slots=True)
class LoadedOptions(Generic[O]):
    options: O
    discovery: DiscoveryProperties


def read_options(cls: type[O], given: Mapping[str, str], use: Use) -> LoadedOptions[O]:
    """Parse options from Spark, completed by the defaults of the session and by the transport that they name.

    :raises OptionError: as :meth:`mama_spark.options.declare.Options.parse`; unknown transport
    :raises ConfigError: the properties file cannot be read, or its fields are wrong
    """
    known = [*option_names(cls), "storage.*"] if keeps_tables(cls) else option_names(cls)
    completed, defaults = with_session_defaults(given)
    expanded = expand(with_nats_environment(completed, os.environ), known, os.environ)
    discovery = DiscoveryProperties(expanded.fields, expanded.discovery_supported, expanded.supported_key)
    return LoadedOptions(cls.parse(expanded.options, use, {*expanded.shared, *defaults}), discovery)


def make_discovery(o: TransportOptions) -> DiscoveryBridge:
    """The discovery bridge of this transport, not opened yet.

    :raises ConfigError: the bridge cannot be loaded
    :raises StatusError: NOT_IMPLEMENTED: it has no source discovery (SD-18)
    """
    try:
        return discovery_bridge(o)
    except UnsupportedFeature as e:
        raise StatusError(Status.NOT_IMPLEMENTED, str(e)) from e
