"""One bar for a whole write, on the driver: tasks report to it by datagrams."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Iterator

from pyspark.sql import SparkSession

from ..console.progress import Progress
from ..contracts.errors import ConfigError
from .register import has_jvm
from .write_counts import PROPERTY, WriteCounts, decode

#: Seconds.
_POLL = 0.25


@contextlib.contextmanager
def progress(spark: SparkSession, total: int | None = None) -> Iterator[WriteCounts]:
    """Show one bar for what ``mamapub`` writes in this block, over all partitions::

        with mama_spark.progress(spark):
            orders.write.format("mamapub").options(**options).mode("append").save()

    In a terminal and in a notebook it is a bar with rate, failures, messages in flight and what the write waits for;
    elsewhere a line on standard error every ten seconds. Writes and queries that this thread starts in the block count.
    Executors send UDP datagrams to a free port of ``spark.driver.host``; where none arrives, nothing is shown, and the
    write is the same.

    :param total: messages that there will be; then the time that is left is shown, too
    :returns: the counts as they are
    :raises ConfigError: the session is one of Spark Connect, which tells tasks nothing of the driver
    """
    if not has_jvm(spark):
        raise ConfigError(
            "progress() needs a driver of its own, and Spark Connect has none: look at the write with mama top, or at "
            "its flight log afterwards"
        )
    context, counts, token = spark.sparkContext, WriteCounts(), secrets.token_hex(16)
    host = context.getConf().get("spark.driver.host", "127.0.0.1").strip("[]")
    bind = context.getConf().get("spark.driver.bindAddress", host).strip("[]")
    receiver = socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, Progress("publishing", "messages", total) as bar:
        receiver.bind((bind, 0))
        receiver.settimeout(_POLL)
        bar.show(0, counts.note())
        stop = threading.Event()
        thread = threading.Thread(target=_receive, args=(receiver, token, counts, bar, stop), daemon=True)
        before = context.getLocalProperty(PROPERTY)
        context.setLocalProperty(PROPERTY, f"{host}:{receiver.getsockname()[1]}:{token}")
        thread.start()
        try:
            yield counts
        finally:
            context.setLocalProperty(PROPERTY, before)  # type: ignore[arg-type]
            stop.set()
            thread.join()


def _receive(receiver: socket.socket, token: str, counts: WriteCounts, bar: Progress, stop: threading.Event) -> None:
    """Show the reports of tasks until the block has ended and none is waiting."""
    while True:
        try:
            report = decode(token, receiver.recv(65536))
        except TimeoutError:
            if stop.is_set():
                return
            continue
        if report is not None:
            counts.add(report)
            bar.show(counts.done, counts.note())
