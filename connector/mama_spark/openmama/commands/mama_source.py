"""``mama mama-source``: serves what is in a log to OpenMAMA's market data subscribers, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...console.arguments import add_metrics, add_option, add_storage, add_url, duration_argument, options, pairs
from ...console.log_arguments import LOG, add_begin, default_state_file, served_log, served_urls
from ...console.output import print_error, say_as
from ...console.signals import stop_on_signals
from ...contracts.errors import ConfigError, OptionError
from ...contracts.redaction import redact_url
from ...mama.messages.event_records import LIVE
from ...mama.messages.source_records import BEST, OK, ONLINE, UNKNOWN, SourceRecord
from ...mama.messages.status import MsgStatus
from ...options import DiscoveryOptions, command
from ...options.paths import table_path
from ...options.tables import read_toml
from ...options.urls import urls as server_urls
from ...options.values import topic_prefix
from ...publishing.window.reconnecting import ReconnectingBridge
from ...recording.log_follower import LogFollower
from ...recording.log_position import first_position
from ...registry import discovery_bridge, log_bridge
from ...telemetry.metrics_server import served_metrics
from ..source.event_reporter import (
    DiscoveryStore,
    FlightLogStore,
    SourceEventReporter,
    SourceEventReporters,
    SourceEvents,
)
from ..source.market_data_source import MarketDataSource, PublisherEvent, SourceRules
from ..source.server import MarketDataServer
from ..source.source_state import SourceState
from ..wire.dictionary import DictionaryEntry, dictionary_of_file
from ..wire.market_data import REFUSALS
from ..wire.peer import OpenMamaPeer
from ..wire.settings import PeerSettings

_USE = command("mama-source", "stream", "wait_timeout")
_HEARTBEAT = 30.0  #: seconds that a subscriber's process may stand still before it is disconnected
_LINGER = 5.0  #: seconds that an end waits for subscribers
_ANNOUNCE_INTERVAL, SOURCE_TTL = 1.0, 30.0  #: seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_url(parser, LOG)
    parser.add_argument(
        "--to", default="oz://127.0.0.1:5756", metavar="URL",
        help="the network: oz://host:5756 (name server; the default is this machine's), "
        "zmq://*:5557?incoming=tcp://*:5556",
    )  # fmt: skip
    parser.add_argument("--source", required=True, metavar="NAME", help="name of the source: topics are NAME.SYMBOL")
    parser.add_argument(
        "--topic-prefix", type=lambda text: topic_prefix(text) if text else "", metavar="TEXT",
        help="prefix of the log's topics; the rest is the symbol (default: the source)",
    )  # fmt: skip
    parser.add_argument("--dictionary", type=Path, metavar="FILE", help="data dictionary to serve: lines fid|name|type")
    parser.add_argument(
        "--conf-file", type=Path, metavar="FILE.toml", help="refusals and groups: conf/mama-source.toml"
    )
    parser.add_argument(
        "--state", type=Path, metavar="FILE", help="file of numbers, images and position (default: ~/.local/state)"
    )
    add_begin(parser, "saved (at first: earliest), latest, earliest or a sequence")
    parser.add_argument("--events", action="store_true", help="show requests and subscriptions as they come")
    parser.add_argument("--flight-log", metavar="PATH", help="table that gets the events of the publisher")
    parser.add_argument(
        "--flight-log-every", type=duration_argument(), default="1m",
        metavar="TIME", help="time between two commits (default: 1m)",
    )  # fmt: skip
    add_storage(parser, "the flight log")
    parser.add_argument(
        "--announce", nargs="?", const="", metavar="URL",
        help="announce the source, and its events, to discovery there (default: at the servers of the log)",
    )  # fmt: skip
    add_metrics(parser)
    parser.add_argument("--json", action="store_true", help='each line as JSON: {"text": ...}')
    add_option(parser, "option of the log's connection")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM.

    :raises MamaError: it cannot serve
    """
    say = say_as(args.json)
    log = served_urls(args)
    o = served_log(args, log, _USE)
    if "." in args.source or not args.source.isprintable() or not args.source:
        raise OptionError(f"--source is one name without dots, got {args.source!r}")
    entries = [] if args.dictionary is None else dictionary_of_file(args.dictionary, "--dictionary")
    rules = read_rules(args.conf_file, entries)
    settings = peer_settings(args.to)
    state = SourceState(args.state or default_state_file("mama-source", log, args.source, ".sqlite"), args.source)
    bridge = ReconnectingBridge(lambda: log_bridge(o, o.wait_timeout), o.wait_timeout)
    follower = LogFollower(bridge, str(o.stream))
    peer = OpenMamaPeer(settings)
    reports = reporters(args, state.sender)
    try:
        with stop_on_signals() as stop, reports:
            source = MarketDataSource(args.source, state.sender, rules, state.topics())
            server = MarketDataServer(
                peer, source, state, follower, prefix=args.source if args.topic_prefix is None else args.topic_prefix,
                say=say, warn=print_error,
                on_event=partial(_report, reports, say if args.events else None),
            )  # fmt: skip
            begin = first_position(args.begin, state.at, follower.bounds(), "earliest")
            follower.start(begin)
            peer.open()
            reports.lifecycle(LIVE)
            say(
                f"serving {o.stream} as {args.source} at {args.to} ({len(source.topics)} symbols; from record "
                f"{begin.served + 1} on; Ctrl-C ends it)"
            )
            with served_metrics(args.metrics, server.metrics, say, print_error):
                server.run(stop.is_set)
            say(f"ended: {server.progress()}")
    finally:
        follower.close()
        bridge.close()
        peer.close()
        state.close()
    return stop.exit_code


def peer_settings(text: str) -> PeerSettings:
    """Settings of the network at ``--to``.

    :raises ConfigError: it says nothing sound
    """
    try:
        settings = PeerSettings.from_urls(server_urls(text))
    except ConfigError as e:
        raise ConfigError(str(e).replace("option url", "--to")) from e
    except ValueError as e:
        raise OptionError(f"--to {e}") from None
    if not settings.naming and not settings.incoming:
        raise ConfigError("--to needs incoming=tcp://host:port in direct mode: where subscribers send their requests")
    return replace(settings, heartbeat=_HEARTBEAT, linger=_LINGER, program="mama-source")


def read_rules(path: Path | None, dictionary: list[DictionaryEntry]) -> SourceRules:
    """The tables of the configuration file.

    :raises ConfigError: something else stands there
    """
    content = {} if path is None else read_toml(path)
    unknown = content.pop("unknown", "NOT_FOUND")
    refuse, groups = content.pop("refuse", {}), content.pop("groups", {})
    if content or not isinstance(refuse, dict) or not isinstance(groups, dict):
        raise ConfigError(f"{path}: only unknown, and the tables [refuse] and [groups], are known")
    for name, members in groups.items():
        if not isinstance(members, list) or not members or not all(isinstance(member, str) for member in members):
            raise ConfigError(f"{path}: [groups] {name} must be a list of symbols")
    return SourceRules(
        [(pattern, _status(path, f"[refuse] {pattern}", word)) for pattern, word in refuse.items()],
        None if unknown == "wait" else _status(path, "unknown", unknown), groups, dictionary,
    )  # fmt: skip


def _status(path: Path | None, key: str, word: Any) -> MsgStatus:
    if word not in REFUSALS:
        raise ConfigError(f"{path}: {key} must be one of {', '.join(sorted(REFUSALS))}, got {word!r}")
    return REFUSALS[word]


def reporters(args: argparse.Namespace, sender: int) -> SourceEventReporters:
    """Reporters that store the events of the source, not started.

    :param args: arguments with ``url``, the servers of the log
    :raises ConfigError: the options say nothing sound
    """
    run_id, made = uuid.uuid4().hex, []
    if args.flight_log is not None:
        try:
            uri = table_path(args.flight_log)
        except ValueError as e:
            raise OptionError(f"--flight-log {e}") from None
        store = FlightLogStore(uri, dict(pairs(args.storage, "--storage")), run_id)
        made.append(SourceEventReporter(store, SourceEvents(args.source, sender), args.flight_log_every, print_error))
    elif args.storage:
        raise OptionError("--storage is for --flight-log PATH")
    if args.announce is not None:
        announced = DiscoveryStore(
            partial(discovery_bridge, _discovery_options(args)), _source_record(args, sender), run_id, SOURCE_TTL
        )
        made.append(SourceEventReporter(announced, SourceEvents(args.source, sender), _ANNOUNCE_INTERVAL, print_error))
    return SourceEventReporters(made)


def _discovery_options(args: argparse.Namespace) -> DiscoveryOptions:
    there = argparse.Namespace(
        url=args.announce or args.url,
        option=[o for o in args.option if o.partition("=")[0].strip().lower() != "stream"],
    )
    return options(there, DiscoveryOptions, command("mama-source --announce", "wait_timeout"))


def _source_record(args: argparse.Namespace, sender: int) -> SourceRecord:
    about = {"format": "mama-source", "bridge": "openmama", "url": redact_url(args.to), "log": redact_url(args.log)}
    dictionary = UNKNOWN if args.dictionary is None else args.dictionary.name
    return SourceRecord(args.source, sender, ONLINE, OK, BEST, BEST, dictionary, about)


def _report(reports: SourceEventReporters, say: Callable[[str], None] | None, event: PublisherEvent) -> None:
    reports.callback(event)
    if say is not None:
        say(f"{event.callback} {event.symbol}{f': {event.info}' if event.info else ''}".rstrip())
