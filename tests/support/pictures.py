"""Small images, made without an image library."""

from __future__ import annotations

import random
import struct
import zlib
from typing import Any

PROCESSOR: dict[str, Any] = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 16,
    "merge_size": 2,
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 256},
}
"""Settings of the image processor of the family `qwen3.5`."""


def png(width: int, height: int, seed: int = 0, colour: tuple[int, int, int] | None = None) -> bytes:
    """Return an 8-bit RGB PNG: random blocks of colour, or one colour."""
    rng = random.Random(seed)
    blocks = [[bytes(colour or (rng.randrange(256) for _ in range(3))) for _ in range(7)] for _ in range(7)]
    rows = [b"\0" + b"".join(blocks[y * 7 // height][x * 7 // width] for x in range(width)) for y in range(height)]
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(name, data) for name, data in parts)


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def image_block(data: bytes, format: str = "png") -> Any:
    return {"image": {"format": format, "source": {"bytes": data}}}
