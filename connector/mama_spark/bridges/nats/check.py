"""``mama check``: try everything that can be tried without publishing."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import MamaError
from ...message import MessageBatch
from .bridge import NatsBridge
from .settings import NatsSettings


def lines(settings: NatsSettings, topics: list[str] | None = None) -> list[tuple[bool, str]]:
    """What was tried, in order: whether it is fine, and what there is to say. Ends at the first thing that is not.

    :param topics: of the messages to come, to see that a stream takes them
    """
    found: list[tuple[bool, str]] = []
    servers = ", ".join(settings.shown_servers)
    bridge = NatsBridge(settings)
    try:
        bridge.open()
        found.append((True, f"connection: {bridge.connected_to} of {servers}"))
        found.append((True, "permission: the inbox for acknowledgements is ours to read"))
        if topics:
            prepared = bridge.prepare(MessageBatch.of(topics, [b""] * len(topics)))
            found += [(False, f"topic: {error}") for _, error in prepared.bad]
        found += [(True, f"stream: {text}") for text in bridge.describe_streams()]
        caps = bridge.capabilities
        found.append((True, f"acknowledgements: ackMode={bridge.mode}, payload up to {caps.max_payload} bytes"))
        found += [(True, f"warning: {text}") for text in bridge.warnings]
    except MamaError as e:
        found.append((False, str(e)))
    finally:
        bridge.close()
    return found


def run(
    settings: NatsSettings,
    topics: list[str] | None = None,
    *,
    say: Callable[[str], None] = lambda text: print(text, flush=True),
) -> int:
    """Say each line; returns the exit code of the command: 0 = all is fine."""
    found = lines(settings, topics)
    for fine, text in found:
        say(f"{'ok ' if fine else 'BAD'}  {text}")
    return 0 if all(fine for fine, _ in found) else 1
