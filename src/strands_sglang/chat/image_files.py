"""Image blocks of Strands messages as the files that are sent: plain RGB PNG, identified by their SHA-256.

A lossless file is sent, so that engine and trainer see the same pixels (JPEG is decoded differently on CPU and GPU). A
PNG that is already 8-bit RGB is sent unchanged. Everything else is converted with Pillow (the extra `images`).

A conversation repeats its images with every call, so a file remembers the objects that it was made from: looking up the
same object again reads none of its bytes.

Invariant: the same block always gives the same file within a process, and a file that is returned is a complete PNG.
"""

from __future__ import annotations

import hashlib
import io
import struct
import threading
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from strands_sglang._checks import install
from strands_sglang.errors import ConfigurationError, UnsupportedContentError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB8 = (8, 2)
MAX_PIXELS = 1 << 27
"""Pixels of the largest image that is read: a small file may claim any size."""


@dataclass(frozen=True, eq=False)
class ImageFile:
    """An image as it is sent."""

    png: bytes = field(repr=False)
    digest: str
    width: int
    height: int
    sources: list[bytes] = field(default_factory=list, repr=False)

    def __reduce__(self) -> tuple[type[ImageFile], tuple[Any, ...]]:
        return ImageFile, (self.png, self.digest, self.width, self.height)


class ImageDigest(str):
    """The digest of an image, with the image: what stands for an image in a message for the chat template."""

    __slots__ = ("file",)
    file: ImageFile

    def __reduce__(self) -> tuple[type[ImageDigest], tuple[ImageFile]]:
        return ImageDigest, (self.file,)

    def __new__(cls, file: ImageFile) -> ImageDigest:
        """Return the digest of an image."""
        made = super().__new__(cls, file.digest)
        made.file = file
        return made


_files: weakref.WeakValueDictionary[bytes, ImageFile] = weakref.WeakValueDictionary()
_by_source: weakref.WeakValueDictionary[int, ImageFile] = weakref.WeakValueDictionary()
"""By the id of an object in `ImageFile.sources`, which the file keeps alive."""
_lock = threading.Lock()
_SOURCES = 4
"""Objects that are remembered for one image: equal images may be several objects."""
_SMALL_BYTES = 1 << 18


def image_file(source: bytes) -> ImageFile:
    """Return an image (of an animation, the first frame) as it is sent; equal bytes give the same object."""
    if (known := known_file(source)) is not None:
        return known
    key = hashlib.sha256(source).digest()
    with _lock:
        known = _files.get(key)
    if known is None:
        size = png_size(source)
        png, size = (source, size) if size is not None else _converted(source)
        digest = key if png is source else hashlib.sha256(png).digest()
        known = ImageFile(png, digest.hex(), *size)
    with _lock:
        known = _files.setdefault(key, known)
        _remember(known, source)
    return known


def known_file(source: bytes) -> ImageFile | None:
    """Return the image of an object that `image_file` was called with; None if it has to be read."""
    with _lock:
        known = _by_source.get(id(source))
        return known if known is not None and any(one is source for one in known.sources) else None


def _remember(file: ImageFile, source: bytes) -> None:
    if any(one is source for one in file.sources):
        return
    if len(file.sources) == _SOURCES:
        _by_source.pop(id(file.sources.pop(0)), None)
    file.sources.append(source)
    _by_source[id(source)] = file


def is_cheap(source: bytes) -> bool:
    """Return whether `image_file` takes no long time: the file is known, or it is small and need not be converted."""
    if known_file(source) is not None:
        return True
    return len(source) <= _SMALL_BYTES and source[24:26] == bytes(_RGB8)


def image_bytes(block: Any) -> bytes:
    """Return the file in an image block; refuse one without bytes, such as an S3 object."""
    source = block.get("source") if isinstance(block, Mapping) else None
    data = source.get("bytes") if isinstance(source, Mapping) else None
    if not isinstance(data, (bytes, bytearray)):
        raise UnsupportedContentError(
            "an image block has no bytes: load the image and pass it as"
            ' {"image": {"format": "png", "source": {"bytes": data}}}',
            kind="image",
        )
    return bytes(data)


def sources_in(messages: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield the files in image blocks, also in tool results; malformed blocks are skipped: `messages` reports them."""
    for message in messages:
        content = message.get("content")
        for block in content if isinstance(content, (list, tuple)) else ():
            if not isinstance(block, (dict, Mapping)):
                continue
            result = block.get("toolResult")
            inside = result.get("content") if isinstance(result, (dict, Mapping)) else None
            for part in (block, *(inside if isinstance(inside, (list, tuple)) else ())):
                if isinstance(part, (dict, Mapping)) and "image" in part:
                    with suppress(UnsupportedContentError):
                        yield image_bytes(part["image"])


def images_of(messages: Iterable[Mapping[str, Any]]) -> list[ImageFile]:
    """Return the images of messages for the chat template, in the order in which the template writes them."""
    return [
        part["image"].file
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if part["type"] == "image"
    ]


def png_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG that is sent unchanged; None if the file is something else, or damaged."""
    if not data.startswith(_SIGNATURE):
        return None
    at, size = len(_SIGNATURE), None
    names: list[bytes] = []
    while at + 12 <= len(data):
        length, name = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        if end > len(data) or zlib.crc32(data[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            return None
        if name == b"IHDR" and not names and length == 13:
            width, height, *kind, interlaced = struct.unpack_from(">IIBBBBB", data, at + 8)
            if (kind[0], kind[1]) != _RGB8 or interlaced or not 0 < width * height <= MAX_PIXELS:
                return None
            size = (width, height)
        names.append(name)
        at = end
        if name == b"IEND":
            break
    complete = names[-1:] == [b"IEND"] and b"IDAT" in names and b"tRNS" not in names and b"acTL" not in names
    return size if complete and at == len(data) else None


def _converted(source: bytes) -> tuple[bytes, tuple[int, int]]:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ConfigurationError(
            f"an image is not an 8-bit RGB PNG and must be converted, which needs Pillow: {install('images')}"
        ) from error
    try:
        with Image.open(io.BytesIO(source)) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise ValueError(f"it has {opened.width} x {opened.height} pixels, at most {MAX_PIXELS} are accepted")
            if opened.mode == "F" or opened.mode.startswith("I"):
                raise ValueError(f"it has more than 8 bits per channel ({opened.mode}): convert it to 8 bits first")
            opened.load()
            image = ImageOps.exif_transpose(opened).convert("RGB")
        written = io.BytesIO()
        image.save(written, "PNG", compress_level=1)
    except Exception as error:  # Pillow raises many kinds for damaged files
        raise UnsupportedContentError(f"an image block cannot be decoded: {error}", kind="image") from error
    return written.getvalue(), image.size
