"""The command ``mama``. What a subcommand needs is imported when it runs, so that ``mama --help`` answers at once."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from . import __version__
from .errors import ConfigError, MamaError

if TYPE_CHECKING:
    from .options import SinkOptions

USAGE, INTERRUPTED = 2, 130


def serve(args: argparse.Namespace) -> int:
    from .bridges.nats.server.serve import run
    from .commands.signals import stopping

    with stopping() as stop:
        return run(port=args.port, store=args.store, stop=stop)


def broker(args: argparse.Namespace) -> int:
    from .commands.signals import stopping
    from .mama.discovery.broker_events import broker_event

    try:
        from .services.malamute_broker.serve import run
    except ModuleNotFoundError as e:
        raise ConfigError(f"the broker cannot be loaded ({e}); try: pip install 'mama-spark[malamute]'") from e

    with stopping() as stop:
        return run(args.bind, args.conf_file, stop=stop, encode_kept=lambda event: broker_event(*event))


def check(args: argparse.Namespace) -> int:
    from .conf_file import as_options, load
    from .flightlog.check import check_dead_letters, check_flight_log
    from .options import SinkOptions

    given = {} if args.conf_file is None else as_options(load(args.conf_file)["mamapub"])
    if args.conf_file is None and args.url is None:
        raise ConfigError("what is to be checked? give --conf-file or --url")
    options = SinkOptions.parse({**given, **_transport(args)})

    def say(text: str) -> None:
        print(" ".join(text[:5].split()).ljust(5) + " ".join(text[5:].split()), flush=True)

    prefix = f"{options.topic_prefix.rstrip('.')}." if options.topic_prefix else ""
    topics = [f"{prefix}{options.topic}"] if options.topic else []
    topics += [options.dead_letter_topic] if options.dead_letter_topic else []
    bad = _check_transport(options, topics, say)
    log, letters, storage = options.flight_log, options.dead_letter_table, options.storage_options
    looks: list[tuple[str, Callable[[], list[str]]]] = []
    if log is not None:
        looks.append(("flight log", lambda: check_flight_log(log, storage, options.flight_log_columns)))
    else:
        say("ok   flight log: off")
    if letters is not None:
        looks.append(("dead letters", lambda: check_dead_letters(letters, storage)))
    for what, look in looks:
        try:
            for text in look():
                say(f"ok   {what}: {text}")
        except MamaError as e:
            bad = 1
            say(f"BAD  {what}: {e}")
    return USAGE if bad else 0


def _check_transport(options: SinkOptions, topics: list[str], say: Callable[[str], None]) -> int:
    if options.log is not None:
        options = options.at_log()
    if options.bridge_name == "nats":
        from .bridges.nats import NatsSettings
        from .bridges.nats.check import run

        return run(NatsSettings.from_options(options), topics, say=say)
    if options.bridge_name == "malamute":
        from .bridges.malamute import MalamuteSettings
        from .bridges.malamute.check import run as run_malamute

        return run_malamute(MalamuteSettings.from_options(options), topics, say=say)
    raise ConfigError(f"only the bridges nats and malamute can be checked, not {options.bridge_name}")


def flights(args: argparse.Namespace) -> int:
    from .flightlog import report

    storage = _storage(args.storage)
    if args.words[0] == "sweep" and len(args.words) == 2:
        from .flightlog.adopt_orphans import adopt_orphans

        print(adopt_orphans(args.words[1], storage, args.older_than, args.dry_run).text())
        return 0
    if len(args.words) != 1:
        raise ConfigError("usage: mama flights PATH, or mama flights sweep PATH")
    limit = 2**31 - 1 if args.all else args.limit
    if args.failed:
        rows = report.failed(args.words[0], storage, limit)
        print(json.dumps(rows, ensure_ascii=False, default=str) if args.json else report.failed_text(rows))
        return 0
    summary = report.summarise(args.words[0], storage, limit)
    print(summary.json() if args.json else summary.text())
    return 0


def sources(args: argparse.Namespace) -> int:
    from .commands.sources import run

    return run(_transport(args), once=args.once, as_json=args.json)


def events(args: argparse.Namespace) -> int:
    from .commands.events import run

    return run(_transport(args), begin=args.begin, as_json=args.json)


def docs(args: argparse.Namespace) -> int:
    from .commands.docs import run

    return run(args)


def pub(args: argparse.Namespace) -> int:
    from .commands.pub import run

    return run(args)


def sub(args: argparse.Namespace) -> int:
    from .commands.sub import run

    return run(args)


def record(args: argparse.Namespace) -> int:
    try:
        from .commands.record import run
    except ModuleNotFoundError as e:
        raise ConfigError(f"the recorder cannot be loaded ({e}); try: pip install 'mama-spark[tango]'") from e

    return run(args)


def tango_source(args: argparse.Namespace) -> int:
    from .commands.tango_source import run

    return run(args)


def _storage(given: Sequence[str]) -> dict[str, str]:
    return _pairs("--storage", given)


def _transport(args: argparse.Namespace) -> dict[str, str]:
    """Options as Spark would hand them over."""
    return {**({} if args.url is None else {"url": args.url}), **_pairs("--option", args.option)}


def _pairs(argument: str, given: Sequence[str]) -> dict[str, str]:
    pairs = [option.partition("=") for option in given]
    if any(not equals for _, equals, _ in pairs):  # the text may be a secret
        raise ConfigError(f"{argument} wants NAME=VALUE, and one has no =")
    return {name: value for name, _, value in pairs}


def _age(text: str) -> timedelta:
    unit = {"m": "minutes", "h": "hours", "d": "days"}.get(text[-1:])
    if unit is None or not text[:-1].isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no age: give minutes, hours or days, such as 90m, 12h or 1d")
    return timedelta(**{unit: int(text[:-1])})


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="mama", description="Publish DataFrames and know what became of every row.")
    top.add_argument("--version", action="version", version=f"mama-spark {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    sub = commands.add_parser("serve", help="run a NATS server with JetStream and a demo stream until Ctrl-C")
    sub.add_argument("--port", type=int, default=0, help="of the clients (default: a free one)")
    sub.add_argument("--store", type=Path, help="folder that keeps the streams (default: a temporary one)")
    sub.set_defaults(run=serve)

    sub = commands.add_parser("broker", help="run a Malamute broker until Ctrl-C")
    sub.add_argument("--bind", metavar="ENDPOINT", help="default: tcp://127.0.0.1:9999, or what the file says")
    sub.add_argument("--conf-file", type=Path, metavar="FILE.toml", help="streams, limits, security: conf/broker.toml")
    sub.set_defaults(run=broker)

    sub = commands.add_parser("check", help="try connection, permission, stream and flight log without publishing")
    sub.add_argument("--conf-file", metavar="FILE.toml", help="the job's configuration")
    _add_transport(sub, "mamapub")
    sub.set_defaults(run=check)

    sub = commands.add_parser(
        "flights",
        help="what became of the rows: summary of a flight log",
        usage="mama flights PATH [--failed] [--json] [--all]\n       mama flights sweep PATH [--older-than 1d]",
        description="Summary of the flight log at PATH. sweep: add parts of killed jobs that no commit refers to.",
    )
    sub.add_argument("words", nargs="+", metavar="PATH")
    sub.add_argument("--failed", action="store_true", help="the latest flights that failed or timed out")
    sub.add_argument("--json", action="store_true", help="one line of JSON")
    sub.add_argument("--all", action="store_true", help="all topics, reasons and failed flights")
    sub.add_argument("--limit", type=int, default=20, help="how many of them otherwise (default 20)")
    sub.add_argument("--older-than", type=_age, default=timedelta(days=1), metavar="AGE", help="sweep: 90m, 12h, 1d")
    sub.add_argument("--dry-run", action="store_true", help="sweep: only say what would be added")
    sub.add_argument("--storage", action="append", default=[], metavar="NAME=VALUE", help="storage option of delta-rs")
    sub.set_defaults(run=flights)

    _add_pub_and_sub(commands)
    _add_tango_source(commands)
    _add_record(commands)

    sub = commands.add_parser("sources", help="the sources that announce themselves, and what changes, until Ctrl-C")
    _add_transport(sub, "mamadiscovery")
    sub.add_argument("--once", action="store_true", help="only the sources there are now")
    sub.add_argument("--json", action="store_true", help="one line of JSON a source or change")
    sub.set_defaults(run=sources)

    sub = commands.add_parser("events", help="what happens to publishers, topics and readers, until Ctrl-C")
    _add_transport(sub, "mamadiscovery")
    sub.add_argument(
        "--from", dest="begin", choices=("latest", "earliest"), default="latest",
        help="earliest: what is still kept comes first (default: latest)",
    )  # fmt: skip
    sub.add_argument("--json", action="store_true", help="one line of JSON an event")
    sub.set_defaults(run=events)

    generated = commands.add_parser("docs", help="generated documentation")
    options = generated.add_subparsers(required=True, metavar="WHAT").add_parser(
        "options", help="all options of mamapub as Markdown"
    )
    way = options.add_mutually_exclusive_group()
    way.add_argument("--write", type=Path, metavar="FILE")
    way.add_argument("--check", type=Path, metavar="FILE", help="fail when FILE is not fresh")
    options.set_defaults(run=docs)
    return top


def _add_pub_and_sub(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    one = commands.add_parser("pub", help="publish a message, or every line of standard input")
    one.add_argument("topic")
    one.add_argument("value", nargs="?", help="default: every line of standard input is a message")
    one.add_argument("-H", "--header", action="append", default=[], metavar="NAME=VALUE", help="may be repeated")
    _add_connection(one)
    one.set_defaults(run=pub)

    one = commands.add_parser("sub", help="show messages as they are stored, until Ctrl-C")
    one.add_argument("pattern", help="topics, separated by commas; * stands for one part, > for all that follow")
    one.add_argument("--from", dest="begin", default="now", metavar="WHERE", help="now, earliest or a sequence")
    one.add_argument("--count", type=int, metavar="N", help="end after N messages")
    one.add_argument("--json", action="store_true", help="a line of JSON each")
    one.add_argument("--headers", action="store_true", help="show headers, too")
    _add_connection(one)
    one.set_defaults(run=sub)


def _add_record(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    one = commands.add_parser("record", help="write the events of Tango devices to a log until Ctrl-C")
    one.add_argument("--url", metavar="URL", help="tango://host:port of the database, or of a server with #dbase=no")
    one.add_argument("--to", metavar="LOG", help="nats://host:4222/STREAM or mlp://host:9999/stream")
    one.add_argument("--conf-file", type=Path, metavar="FILE.toml", help="all settings: conf/tango-record.toml")
    one.add_argument("--device", action="append", dest="devices", metavar="NAME", help="or pattern; may be repeated")
    one.add_argument("--attribute", action="append", dest="attributes", metavar="NAME", help="or pattern, such as *")
    one.add_argument("--event", action="append", dest="events", metavar="TYPE", help="change, archive, ...")
    one.add_argument("--name", help="of the recorder; one log has one of a name")
    one.add_argument("-o", "--option", action="append", default=[], metavar="NAME=VALUE", help="for the log")
    one.set_defaults(run=record)


def _add_tango_source(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    one = commands.add_parser("tango-source", help="serve the Tango events of a log to Tango clients until Ctrl-C")
    one.add_argument(
        "--from", dest="log", required=True, metavar="LOG", help="nats://host:4222/STREAM, mlp://host/stream"
    )
    one.add_argument("--bind", default="0.0.0.0:0", metavar="HOST:PORT", help="of calls; port 0: a free one")
    one.add_argument("--heartbeat-port", type=int, default=0, metavar="PORT", help="default: a free one")
    one.add_argument("--event-port", type=int, default=0, metavar="PORT", help="default: a free one")
    one.add_argument("--hwm", type=int, default=1000, metavar="N", help="events that may wait for one client (1000)")
    one.add_argument("--server", default="mama/source", metavar="EXE/INSTANCE", help="default: mama/source")
    one.add_argument("--host-name", metavar="NAME", help="in topics and addresses (default: this machine's)")
    one.add_argument(
        "--advertise", action="append", metavar="HOST", help="where clients connect for events; repeatable"
    )
    one.add_argument("--name", help="serve only rows that were published to tango://NAME")
    one.add_argument("--conf-file", type=Path, metavar="FILE.toml", help="criteria of events: conf/tango-source.toml")
    one.add_argument("--position", type=Path, metavar="FILE", help="how far it has come (default: in ~/.local/state)")
    one.add_argument(
        "--begin", type=_begin, default="saved", metavar="WHERE",
        help="saved (at first: latest), latest, earliest or a sequence: what is pushed again is said here",
    )  # fmt: skip
    one.add_argument(
        "--hold", type=float, default=30.0, metavar="SECONDS",
        help="after a restart, wait that long for clients that were subscribed (30)",
    )  # fmt: skip
    one.add_argument(
        "--heartbeat", type=float, default=9.0, metavar="SECONDS",
        help="between heartbeats (9); clients begin anew after 10 without one",
    )  # fmt: skip
    one.add_argument(
        "-o", "--option", action="append", default=[], metavar="NAME=VALUE", help="of the log's connection"
    )
    one.set_defaults(run=tango_source)


def _begin(text: str) -> str:
    if text not in ("saved", "latest", "earliest") and not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no place: give saved, latest, earliest or a sequence")
    return text


def _add_connection(parser: argparse.ArgumentParser) -> None:
    """``--option``: whatever the format of the command takes."""
    parser.add_argument("--url", metavar="URL", help="servers; the scheme picks the bridge (nats://127.0.0.1:4222)")
    parser.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any option of docs/reference/options.md",
    )


def _add_transport(sub: argparse.ArgumentParser, what: str) -> None:
    sub.add_argument("--url", help="of the middleware (default nats://127.0.0.1:4222)")
    sub.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"any other option of {what}: credentials=...",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0; 2 when something is not fine, with a line that says what; 130 after Ctrl-C."""
    args = parser().parse_args(argv)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except MamaError as e:
        print(f"mama: {' '.join(str(e).split())}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `mama flights ... | head`: the reader has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
