"""A process that has no file descriptor left gets one clear error: libzmq would end it without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONNECTOR = Path(__file__).resolve().parents[3] / "connector" / "mama_spark"

#: Tries with 0 to 20 descriptors more than are open; prints the outcomes.
SCRIPT = """
import os, resource
import nats.aio.client, zmq, mama_spark.nats.publish.bridge  # files that imports open are not the point
from mama_spark.nats import publisher_bridge
from mama_spark.contracts.errors import Unavailable
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.options import SinkOptions
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.contracts.zmq_connections import open_context

def context():
    made = open_context()
    sockets = [made.socket(zmq.SUB) for _ in range(4)]
    for socket in sockets:
        socket.close()
    made.term()

def subscriber():
    with TangoSubscriber():
        pass

def source():
    with TangoEventSource():
        pass

def client():
    with MalamuteClient("mlp://127.0.0.1:1", timeout=0.01):
        pass

def nats_bridge():
    publisher_bridge(SinkOptions.parse({"url": "nats://127.0.0.1:1"})).open()

limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for attempt in (nats_bridge, context, subscriber, source, client):
    texts = set()
    for left in range(0, 7 if attempt is nats_bridge else 21, 2):  # it waits for seconds where it may try
        used = len(os.listdir("/proc/self/fd")) - 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + left, hard))
        try:
            attempt()
        except Unavailable as e:
            texts.add("Too many open files" if "Too many open files" in str(e) else "unavailable")
        else:
            texts.add("opened")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    print(attempt.__name__, *sorted(texts), sep=", ")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the open files in /proc")
def test_too_few_descriptors_are_an_error_and_not_the_end_of_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "nats_bridge, Too many open files",
        "context, Too many open files, opened",
        "subscriber, Too many open files, opened",
        "source, Too many open files, opened",
        "client, Too many open files, unavailable",
    ]


def test_contexts_are_opened_in_one_place() -> None:
    opening = [path.name for path in CONNECTOR.rglob("*.py") if "zmq.Context()" in path.read_text(encoding="utf-8")]
    assert sorted(opening) == ["engine_setup.py", "zmq_connections.py"]  # the former is of the test kit
