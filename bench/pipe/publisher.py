"""``python -m bench.pipe.publisher URL SUBJECT RATE SECONDS BYTES``: publish to NATS at a rate, and print how many.

A payload begins with the time of its publishing: microseconds since the epoch, 8 bytes, big-endian.
"""

from __future__ import annotations

import asyncio
import sys
import time

import nats

TICK = 0.005  #: seconds between two looks at what is due


async def publish(url: str, subject: str, rate: float, seconds: float, size: int) -> int:
    """How many messages were published."""
    connection, filler, n = await nats.connect(url), b"x" * (size - 8), 0
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        for _ in range(int(passed * rate) - n):
            await connection.publish(f"{subject}.{n % 16}", (time.time_ns() // 1000).to_bytes(8, "big") + filler)
            n += 1
        await asyncio.sleep(TICK)
    await connection.flush()
    await connection.close()
    return n


if __name__ == "__main__":
    where, subject, rate, seconds, size = sys.argv[1:]
    print(asyncio.run(publish(where, subject, float(rate), float(seconds), int(size))))
