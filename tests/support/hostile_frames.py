"""What a peer sends that is broken, or means harm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def hostile_frames(frames: Sequence[bytes], chance: np.random.Generator, n: int) -> list[bytes]:
    """``n`` of these frames with up to 7 bytes changed; a third of them is cut, too. All bytes are changed at once."""
    chosen = chance.integers(len(frames), size=n)
    raw = np.frombuffer(b"".join([frames[frame] for frame in chosen.tolist()]), np.uint8).copy()
    sizes = np.array([len(frame) for frame in frames])[chosen]
    begins = np.cumsum(sizes) - sizes
    changed = np.repeat(np.arange(n), chance.integers(8, size=n))
    raw[begins[changed] + chance.integers(sizes[changed])] = chance.integers(256, size=len(changed))
    ends = begins + np.where(np.arange(n) % 3 == 0, chance.integers(sizes + 1), sizes)
    data = raw.tobytes()
    return [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
