"""``mama check``: tests connection, permissions and streams without publishing."""

from __future__ import annotations

from dataclasses import replace

from mama_spark.contracts.errors import MamaError
from mama_spark.contracts.message import MessageBatch

from .key_rows import Bucket
from .publish.bridge import NatsBridge
from .settings import NatsSettings


def check_server(settings: NatsSettings, topics: list[str] | None = None) -> list[tuple[bool, str]]:
    """The checks in order, each with success and a text, up to the first failed one; a stream must take each of
    ``topics``."""
    found: list[tuple[bool, str]] = []
    servers = ", ".join(settings.shown_servers)
    makes = settings.create_stream  # only a write may create a stream
    missing_is_fine = replace(settings, create_stream=False, stream=None, streams=None)
    bridge = NatsBridge(missing_is_fine if makes else settings)
    try:
        bridge.open()
        if settings.bucket is not None:
            bucket = Bucket(settings.bucket, settings, timeout=2 * settings.connect_timeout, wait=False)
            topics = [f"{bucket.subject_head}key", *(topics or ())]
        found.append((True, f"connection: {bridge.connected_to} of {servers}"))
        found.append((True, "permission: the inbox for acknowledgements is ours to read"))
        if makes:
            found.append((True, "stream: createStream=true, the write makes what is missing"))
        elif topics:
            prepared = bridge.prepare(MessageBatch.of(topics, [b""] * len(topics)))
            found += [(False, f"topic: {error}") for _, error in prepared.rejected]
        found += [(True, f"stream: {text}") for text in bridge.describe_streams()]
        if settings.streams is not None:
            found += [(True, f"streams: {text}") for text in bridge.describe_load(settings.streams)]
        caps = bridge.capabilities
        found.append((True, f"acknowledgements: ackMode={bridge.mode}, payload up to {caps.max_payload} bytes"))
        found += [(True, f"warning: {text}") for text in bridge.warnings]
    except MamaError as e:
        found.append((False, str(e)))
    finally:
        bridge.close()
    return found
