"""``mama tango-source``: serves what is in a log to Tango clients, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...console.arguments import add_metrics, add_option, add_url, duration_argument
from ...console.log_arguments import LOG, add_begin, default_state_file, served_log, served_urls
from ...console.output import print_error, say_as
from ...console.signals import stop_on_signals
from ...contracts.errors import ConfigError, OptionError, Unavailable
from ...options import command
from ...options.tables import read_toml
from ...options.times import duration_or_none
from ...options.urls import is_port
from ...publishing.window.reconnecting import ReconnectingBridge
from ...recording.log_follower import LogFollower
from ...registry import log_bridge
from ...telemetry.metrics_server import served_metrics
from ..giop.ior import BadAddress, parse_tango_host
from ..source.event_source import SourceSettings, TangoEventSource
from ..source.event_supplier import HWM
from ..source.log_replayer import LogReplayer, Rule
from ..source.replay_service import ReplayService

_USE = command("tango-source", "stream", "wait_timeout")
_HOLD = duration_argument(duration_or_none)
_HEARTBEAT = duration_argument()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_url(parser, LOG)
    parser.add_argument(
        "--bind", default="127.0.0.1:0", metavar="HOST:PORT", help="address for calls; port 0: a free one"
    )
    parser.add_argument("--heartbeat-port", type=int, default=0, metavar="PORT", help="(default: a free one)")
    parser.add_argument("--event-port", type=int, default=0, metavar="PORT", help="(default: a free one)")
    parser.add_argument(
        "--hwm", type=int, default=HWM, metavar="N", help=f"events that may wait for one client (default {HWM})"
    )
    parser.add_argument(
        "--server", default="mama/source", metavar="EXE/INSTANCE", help="name of the server (default mama/source)"
    )
    parser.add_argument(
        "--host-name", metavar="NAME", help="host name in topics and addresses (default: this machine's)"
    )
    parser.add_argument(
        "--advertise", action="append", metavar="HOST", help="where clients connect for events; repeatable"
    )
    parser.add_argument("--name", help="serve only rows that were published to tango://NAME")
    parser.add_argument(
        "--conf-file", type=Path, metavar="FILE.toml", help="criteria of events: conf/tango-source.toml"
    )
    parser.add_argument(
        "--position", type=Path, metavar="FILE", help="file of the position in the log (default: in ~/.local/state)"
    )
    add_begin(parser, "saved (at first: latest), latest, earliest or a sequence")
    parser.add_argument(
        "--hold", type=_HOLD, default="30s", metavar="DURATION",
        help="after a restart, wait that long for clients that were subscribed",
    )  # fmt: skip
    parser.add_argument(
        "--heartbeat", type=_HEARTBEAT, default="9s", metavar="DURATION",
        help="interval of heartbeats; clients begin anew after 10s without one",
    )  # fmt: skip
    add_metrics(parser)
    parser.add_argument("--json", action="store_true", help='each line as JSON: {"text": ...}')
    parser.add_argument(
        "--database", metavar="HOST:PORT",
        help="register the devices in this Tango database (TANGO_HOST), so that clients find them by name",
    )  # fmt: skip
    parser.add_argument(
        "--unregister", action="store_true", help="at the end, remove server, devices and properties from the database"
    )
    add_option(parser, "option of the log's connection")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM.

    :raises MamaError: it cannot serve
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="mama: %(message)s")
    urls = served_urls(args)
    o = served_log(args, urls, _USE)
    host, port = _address(args.bind)
    settings = SourceSettings(
        host, port, args.heartbeat_port, args.event_port, args.hwm, args.server, args.host_name, args.advertise or (),
        heartbeat_period=args.heartbeat, database=_database(args.database),
    )  # fmt: skip
    source = TangoEventSource((), settings)
    position = args.position or default_state_file("tango-source", urls, args.server, ".json")
    position.parent.mkdir(parents=True, exist_ok=True)
    replayer = LogReplayer(source, read_rules(args.conf_file), args.name)
    bridge = ReconnectingBridge(lambda: log_bridge(o, o.wait_timeout), o.wait_timeout)
    follower = LogFollower(bridge, str(o.stream))
    with stop_on_signals() as stop, _locked(position):
        try:
            say = say_as(args.json)
            service = ReplayService(source, replayer, follower, position, stop, say, print_error)
            service.unregister = args.unregister
            with served_metrics(args.metrics, service.metrics, say, print_error):
                service.run(args.begin, args.hold)
        finally:
            source.close()
            follower.close()
            bridge.close()
    return stop.exit_code


def read_rules(path: Path | None) -> list[Rule]:
    """The tables of the configuration file.

    :raises ConfigError: something else stands there
    """
    if path is None:
        return []
    content = read_toml(path)
    tables = content.pop("attribute", [])
    if content or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{path}: only tables [[attribute]] are known")
    try:
        return [Rule.of(table) for table in tables]
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from e


def _database(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return ",".join(map(str, parse_tango_host(text))).lower()
    except BadAddress as error:
        raise OptionError(f"--database: {error}") from None


def _address(bind: str) -> tuple[str, int]:
    host, colon, port = bind.rpartition(":")
    if not colon or not is_port(port):
        raise OptionError(f"--bind wants HOST:PORT, got {bind!r}")
    return host.strip("[]"), int(port)


@contextmanager
def _locked(position: Path) -> Iterator[None]:
    """Locks the position for this process: two with one position would serve half of the log each."""
    import fcntl

    try:
        lock = position.with_name(f"{position.name}.lock").open("w")
    except OSError as e:
        raise ConfigError(f"{position}: {e.strerror or e}") from e
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Unavailable(f"another source goes on from {position}; give one of them another --position") from None
        yield
