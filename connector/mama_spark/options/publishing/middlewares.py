"""Which options of ``mamapub`` go with middlewares that take less than others. Pure."""

from __future__ import annotations

from typing import Protocol
from urllib.parse import urlsplit

from ..declare import camel, require


class _Given(Protocol):
    """What is looked at of the options."""

    @property
    def bridge_name(self) -> str: ...
    @property
    def url(self) -> tuple[str, ...]: ...
    @property
    def log(self) -> tuple[str, ...] | None: ...
    @property
    def pack(self) -> str: ...
    @property
    def ack_mode(self) -> str: ...
    @property
    def on_unavailable(self) -> str: ...
    @property
    def require_subscribers(self) -> bool: ...


def check_tango(o: _Given) -> None:
    """:raises OptionError: an option does not go with Tango, or is for it only"""
    if o.bridge_name != "tango":
        require(o.log is None, "option log is for Tango (url=tango://source): others publish to the url itself")
        return
    require(
        o.log is not None,
        "url=tango://source needs option log: where the records are stored, such as nats://host:4222/STREAM",
    )
    parts = urlsplit(o.url[0])
    named = len(o.url) == 1 and parts.netloc and "@" not in parts.netloc and not parts.path.strip("/")
    require(bool(named), "option url must name one event source and nothing else: tango://lab")
    for name in ("topic", "stream"):
        require(
            getattr(o, name) is None,
            f"option {name} does not go with Tango: device, attribute and option log say where rows go",
        )
    require(o.pack == "off", "option pack does not go with Tango: each row is an event of its own")
    require(o.ack_mode != "none", "option ackMode=none does not go with Tango: a row counts when it is stored")


def check_openmama(o: _Given) -> None:
    """:raises OptionError: an option does not go with OpenMAMA"""
    if o.bridge_name != "openmama":
        return
    for name in ("stream", "dead_letter_topic"):
        require(getattr(o, name) is None, f"option {camel(name)} does not go with OpenMAMA: it has no streams")
    require(o.pack == "off", "option pack does not go with OpenMAMA: its programs read one message a row")
    require(
        o.on_unavailable == "fail",
        "option onUnavailable=wait does not go with OpenMAMA: it stores nothing",
    )
    require(
        not (o.require_subscribers and o.ack_mode == "none"),
        "option requireSubscribers needs acknowledgements, and ackMode=none has none",
    )
