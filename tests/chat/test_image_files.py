"""Image blocks become plain RGB PNG files, and damaged ones are refused."""

from __future__ import annotations

import gc
import hashlib
import io
import pickle
import random
import struct
import threading
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.chat import image_files
from strands_sglang.chat.image_files import image_bytes, image_file, is_cheap, png_size, sources_in
from strands_sglang.errors import UnsupportedContentError
from support.pictures import chunk, image_block, png

Image = pytest.importorskip("PIL.Image")


def encoded(image: object, format: str, **options: object) -> bytes:
    """Return an image of Pillow as a file."""
    written = io.BytesIO()
    image.save(written, format, **options)  # type: ignore[attr-defined]
    return written.getvalue()


def test_plain_png_is_sent_unchanged() -> None:
    data = png(20, 10)
    file = image_file(data)
    assert file.png == data
    assert (file.width, file.height) == (20, 10)
    assert file.digest == hashlib.sha256(data).hexdigest()
    assert is_cheap(data)


@pytest.mark.parametrize("format", ["JPEG", "GIF", "WEBP", "PNG"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "1"])
def test_everything_else_becomes_rgb_png(format: str, mode: str) -> None:
    picture = Image.open(io.BytesIO(png(30, 40, 3))).convert(mode)
    if format == "JPEG" and mode in ("RGBA", "P"):
        picture = picture.convert("RGB")
    data = encoded(picture, format)
    file = image_file(data)
    assert png_size(file.png) == (30, 40)
    ours, theirs = (Image.open(io.BytesIO(one)).convert("RGB") for one in (file.png, data))
    assert ours.tobytes() == theirs.tobytes()
    assert image_file(data) is file


def test_photos_are_turned_upright() -> None:
    picture = Image.open(io.BytesIO(png(30, 40, 3)))
    exif = picture.getexif()
    exif[0x0112] = 6  # turned by 90 degrees
    file = image_file(encoded(picture, "JPEG", exif=exif))
    assert (file.width, file.height) == (40, 30)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:40],
        lambda data: data + b"more",
        lambda data: data.replace(b"IDAT", b"IDAX"),
        lambda data: data[:50] + bytes([data[50] ^ 1]) + data[51:],
        lambda data: data[:33] + chunk(b"tRNS", b"\0" * 6) + data[33:],
    ],
)
def test_damaged_files_are_not_sent_as_they_are(damage: object) -> None:
    assert png_size(damage(png(20, 10))) is None  # type: ignore[operator]


@pytest.mark.parametrize("data", [b"", b"no image", png(20, 10)[:60], b"\xff\xd8\xff\xe0 not a photo"])
def test_what_cannot_be_decoded_is_refused(data: bytes) -> None:
    with pytest.raises(UnsupportedContentError, match="cannot be decoded"):
        image_file(data)


def test_a_small_file_that_claims_to_be_huge_is_refused() -> None:
    header = png(20, 10)[8 + 8 : 8 + 8 + 13]
    huge = png(20, 10).replace(header, (1 << 17).to_bytes(4, "big") * 2 + header[8:])
    assert png_size(huge) is None
    with pytest.raises(UnsupportedContentError):
        image_file(huge)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_image_or_refused(data: bytes) -> None:
    try:
        file = image_file(data)
    except UnsupportedContentError:
        return
    assert png_size(file.png) == (file.width, file.height)


def test_conversion_in_many_threads_gives_one_file() -> None:
    data, files = encoded(Image.open(io.BytesIO(png(64, 64, 9))), "WEBP"), []
    threads = [threading.Thread(target=lambda: files.append(image_file(data))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(files) == 8 and len({id(file) for file in files}) == 1


@pytest.mark.parametrize("block", [{}, {"format": "png"}, {"source": {"location": {"type": "s3"}}}, "text", None])
def test_blocks_without_bytes_are_refused(block: object) -> None:
    with pytest.raises(UnsupportedContentError, match="has no bytes"):
        image_bytes(block)


def test_images_are_found_in_messages_and_tool_results() -> None:
    one, two = png(3, 3, 1), png(3, 3, 2)
    result = {"toolResult": {"toolUseId": "a", "content": [{"text": "x"}, image_block(two)]}}
    messages = [{"role": "user", "content": [image_block(one), {"text": "y"}]}, {"role": "user", "content": [result]}]
    assert list(sources_in(messages)) == [one, two]


def test_a_known_object_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    real = hashlib.sha256

    def counted(data: bytes) -> Any:
        hashed.append(len(data))
        return real(data)

    monkeypatch.setattr(hashlib, "sha256", counted)
    source = png(90, 60, 31)
    file = image_file(source)
    before = len(hashed)
    assert all(image_file(source) is file for _ in range(3)) and is_cheap(source) and len(hashed) == before
    equal = bytes(bytearray(source))
    assert equal is not source
    assert image_file(equal) is file and len(hashed) == before + 1, "another object with the same content"
    assert image_file(equal) is file and image_file(source) is file and len(hashed) == before + 1
    for _ in range(9):
        assert image_file(bytes(bytearray(source))) is file
    assert len(file.sources) == 4, "few objects are kept alive"
    assert pickle.loads(pickle.dumps(file)).sources == []


def test_objects_are_forgotten_with_their_file() -> None:
    source = png(90, 60, 32)
    file = image_file(source)
    assert image_files.known_file(source) is file
    del file
    gc.collect()
    assert image_files.known_file(source) is None


def test_large_files_are_not_cheap() -> None:
    noise = random.Random(1).randbytes(400 * 300 * 3)
    rows = b"".join(b"\0" + noise[at : at + 1200] for at in range(0, len(noise), 1200))
    header = struct.pack(">IIBBBBB", 400, 300, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    large = b"\x89PNG\r\n\x1a\n" + b"".join(chunk(name, data) for name, data in parts)
    assert not is_cheap(large)
    file = image_file(large)
    assert file.png is large and is_cheap(large)
