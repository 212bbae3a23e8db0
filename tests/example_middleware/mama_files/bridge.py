"""Publishes: appends each message to the file of ``files:///path``, as a line of JSON: time, topic, payload."""

import fcntl
import json
import time
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from mama_spark.contracts.bridge import Ack, Acks, Capabilities, PollResult, PublisherBridge, ValidationResult
from mama_spark.contracts.errors import BadRow, BadTopic, ConfigError, PublishError, TooLarge, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.options import SinkOptions

MAX_TOPIC, MAX_PAYLOAD = 255, 1 << 20


def publisher_bridge(o: SinkOptions) -> "FileBridge":
    if o.stream is not None or o.create_stream:
        raise ConfigError("a file has no streams: leave out the options stream and createStream")
    return FileBridge(path_of(o.url), acks=o.ack_mode != "none")


def path_of(url: tuple[str, ...]) -> Path:
    return Path(url[0].removeprefix("files://"))


def append(path: Path, batch: MessageBatch) -> None:
    """Each batch in one piece: several processes append."""
    now = time.time_ns() // 1000
    rows = zip(batch.topics.to_pylist(), batch.payloads.to_pylist(), strict=True)
    text = "".join(json.dumps([now, topic, payload.decode("latin-1")]) + "\n" for topic, payload in rows)
    try:
        with path.open("a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(text)
    except OSError as e:
        raise Unavailable(f"{path} cannot be written: {e}") from e


class FileBridge(PublisherBridge):
    """See :class:`mama_spark.contracts.bridge.PublisherBridge`."""

    def __init__(self, path: Path, acks: bool = True) -> None:  # opens nothing
        self.path, self.is_open, self.answered, self.fault = path, False, list[int](), ""
        self._capabilities = Capabilities(
            ack=Ack.STORED if acks else Ack.NONE, sequence=False, dedup=False, headers=False, ordered=False,
            max_payload=MAX_PAYLOAD, max_topic=MAX_TOPIC, packs=False,
        )  # fmt: skip

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def open(self) -> None:
        if not self.path.parent.is_dir():
            raise Unavailable(f"{self.path} cannot be written: its folder is missing")
        self.is_open = True

    def prepare(self, batch: MessageBatch) -> ValidationResult:
        """Check every row once, before anything is sent."""
        bad: dict[int, PublishError] = {}
        for row, topic in enumerate(batch.topics.to_pylist()):
            if topic is None or len(topic.encode()) > MAX_TOPIC or not all(topic.split(".")):
                bad[row] = BadTopic(f"{topic!r} is not a topic")
            elif any(c in "*>" or c.isspace() for c in topic):
                bad[row] = BadTopic(f"{topic!r} has a wildcard or a blank")
        for row, pairs in enumerate(batch.headers.to_pylist() if batch.headers is not None else ()):
            if pairs:
                bad.setdefault(row, BadRow("a file carries no headers"))
        for row, size in enumerate(pc.binary_length(batch.payloads).to_pylist()):
            if size is not None and size > MAX_PAYLOAD:
                bad.setdefault(row, TooLarge(f"{size} bytes, the limit is {MAX_PAYLOAD}"))
        return ValidationResult(sorted(bad.items()))

    def send(self, batch: MessageBatch, first_token: int) -> int:
        """Take the whole batch, or nothing of it now; message i has the token first_token + i."""
        try:
            append(self.path, batch)
        except Unavailable as e:
            self.fault = str(e)
            return 0
        self.fault = ""
        self.answered += range(first_token, first_token + len(batch))
        return len(batch)

    def flush(self) -> None:
        """Every message is answered at once: nothing to do."""

    def poll(self, timeout: float, want: int = 1) -> PollResult:
        if not self.answered or self.capabilities.ack is Ack.NONE:
            time.sleep(timeout)
            return PollResult()
        tokens, self.answered = np.array(self.answered, np.int64), []
        return PollResult(acks=[Acks(tokens, None, None, str(self.path), time.monotonic())])

    def explain_missing_acks(self) -> str:
        return self.fault

    def close(self) -> None:
        """May be called again, and without open()."""
        self.is_open = False

    def __repr__(self) -> str:
        return f"<FileBridge {self.path} {'open' if self.is_open else 'closed'}>"
