"""A bucket that follows another one by a streaming query."""

from __future__ import annotations

from pathlib import Path

from mama_spark.nats.server.nats_server import NatsServer
from nats.js.kv import KeyValue
from pyspark.sql import SparkSession

from tests.support.nats.buckets import by_nats_py, certain, make


def test_a_stream_of_changes_is_written_to_another_bucket(
    spark: SparkSession, nats_server: NatsServer, tmp_path: Path
) -> None:
    url = nats_server.url
    for bucket in ("FROM", "TO"):
        make(url, bucket=bucket)
    changes = spark.readStream.format("mamasub").option("url", url).option("bucket", "FROM").load()
    writer = changes.select("key", "value", "operation").writeStream.format("mamapub").option("url", url)
    writer = writer.option("bucket", "TO").option("checkpointLocation", str(tmp_path / "at"))

    async def fill(kv: KeyValue) -> None:
        for n in range(20):
            await kv.put(f"k{n}", b"%d" % n)

    async def change(kv: KeyValue) -> None:
        await kv.delete("k1")
        await kv.purge("k2")
        await kv.put("k3", b"new")

    async def state(kv: KeyValue) -> dict[str, bytes | None]:
        return {key: (await kv.get(key)).value for key in await certain(kv.keys)}

    for work in (fill, change):
        by_nats_py(url, work, "FROM")
        writer.trigger(availableNow=True).start().awaitTermination()
        assert by_nats_py(url, state, "TO") == by_nats_py(url, state, "FROM")
    assert len(by_nats_py(url, state, "TO")) == 18
