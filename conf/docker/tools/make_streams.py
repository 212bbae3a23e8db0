"""Makes streams with three replicas that are missing: ``python -m make_streams --url URLS NAME=SUBJECTS...``."""

from __future__ import annotations

import argparse
import asyncio
import ssl

import nats
from nats.js.api import StreamConfig
from nats.js.errors import NotFoundError

#: Seconds; more than twice the default of `retryDeadline`, as for streams that `createStream` makes.
DUPLICATE_WINDOW = 300.0


async def make(args: argparse.Namespace) -> None:
    tls = ssl.create_default_context(cafile=args.ca)
    servers = args.url.split(",")  # nats-py would try each sixty times; whoever runs this does it again
    client = await nats.connect(servers, tls=tls, nkeys_seed=args.nkey_seed, max_reconnect_attempts=2)
    streams = client.jetstream(timeout=30)
    for name, _, subjects in (text.partition("=") for text in args.streams):
        try:
            await streams.stream_info(name)
            print(f"{name} is there", flush=True)
        except NotFoundError:
            replicated = StreamConfig(name=name, subjects=subjects.split(","), num_replicas=3, allow_direct=True)
            replicated.duplicate_window = DUPLICATE_WINDOW
            await streams.add_stream(replicated)
            print(f"{name} is made", flush=True)
    await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="tls://host:4222, with commas between several")
    parser.add_argument("--ca", help="file with the CA of the servers")
    parser.add_argument("--nkey-seed", help="file with the seed of a user who may make streams")
    parser.add_argument("streams", nargs="+", metavar="NAME=SUBJECTS")
    asyncio.run(make(parser.parse_args()))


if __name__ == "__main__":
    main()
