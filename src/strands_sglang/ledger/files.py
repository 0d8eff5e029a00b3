"""Files of a run beside its events, such as images: each stored once, under the SHA-256 of its content.

    files/ab/cdef….png     an image; other files have the suffix .bin

Events refer to a file by its digest, so the chain and the seal cover it: `verify` reads every file that an event refers
to, and notices one that was changed or is missing. Plain data (tasks, tool arguments and results, messages) has a
*reference* in place of bytes: `{"__file__": digest}`, or the content itself where nothing is stored:
`{"__bytes__": base64}`.

Invariants: a file exists complete, or not at all, before an event that refers to it is written. What is read has the
digest it was asked for. `with_images` gives back the images that `plain` or `with_references` replaced.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from strands_sglang._files import open_file, replace_file, sync_folder
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.run_dir import LARGEST_FILE

FOLDER = "files"
"""Name of the folder in a run directory."""
FILE_KEY, BYTES_KEY = "__file__", "__bytes__"
_PNG = b"\x89PNG\r\n\x1a\n"
_DIGEST = re.compile("[0-9a-f]{64}")

Put = Callable[[bytes], str]
"""Stores a file and returns its digest."""


def file_digest(data: bytes) -> str:
    """Return the digest of a file: SHA-256, in hex."""
    return hashlib.sha256(data).hexdigest()


class FileStore:
    """The files of one run.

    Example:
        >>> store = FileStore("runs/1")  # doctest: +SKIP
        >>> store.read(image.digest)  # doctest: +SKIP
    """

    def __init__(self, directory: Path | str) -> None:
        """Open the files of a run directory. Nothing is created before the first file."""
        self.folder = Path(directory) / FOLDER

    def find(self, digest: str) -> Path | None:
        """Return the path of a file; None if it is not stored."""
        if _DIGEST.fullmatch(digest):
            for suffix in (".png", ".bin"):
                path = self._path(digest, suffix)
                if path.is_file():
                    return path
        return None

    def read(self, digest: str) -> bytes:
        """Return the content of a file.

        Raises:
            LedgerError: It is missing, cannot be read, or was changed.
        """
        path = self.find(digest)
        if path is None:
            raise LedgerError(f"{self.folder} has no file with digest {digest:.80}")
        try:
            with open_file(path) as file:
                data = file.read(LARGEST_FILE + 1)
        except OSError as error:
            raise LedgerError(f"{path} cannot be read: {error}") from error
        if len(data) > LARGEST_FILE or file_digest(data) != digest:
            raise LedgerError(f"{path} was changed: its content has another digest than its name")
        return data

    def write(self, digest: str, data: bytes, *, sync: bool = False) -> None:
        """Store a file, unless it is stored already.

        Args:
            digest: Its digest.
            data: Its content.
            sync: Whether to wait until it is on disk. One that another process stored is synced as well.

        Raises:
            OSError: It cannot be written.
        """
        path = self._path(digest, ".png" if data.startswith(_PNG) else ".bin")
        if not path.is_file() or path.stat().st_size != len(data):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replace_file(path, sync=sync) as temporary:
                temporary.write_bytes(data)
        elif sync:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        if sync:
            for folder in (path.parent, self.folder, self.folder.parent):
                sync_folder(folder)

    def _path(self, digest: str, suffix: str) -> Path:
        return self.folder / digest[:2] / f"{digest[2:]}{suffix}"


def plain(value: Any, put: Put | None) -> Any:
    """Return a value with references in place of bytes, at any depth. Nothing else is changed.

    Args:
        value: Lists and dicts of anything.
        put: Stores a file; None: references hold the content itself.
    """
    if isinstance(value, (bytes, bytearray)):
        data = bytes(value)
        return {BYTES_KEY: base64.b64encode(data).decode()} if put is None else {FILE_KEY: put(data)}
    if type(value) is dict:
        return {name: plain(item, put) for name, item in value.items()}
    return [plain(item, put) for item in value] if type(value) is list else value


def with_references(content: Any, put: Put) -> Any:
    """Return content blocks with references in place of the bytes of images, documents and videos.

    Blocks in tool results are included. Bytes elsewhere, such as in JSON, are not replaced: data of models and tools
    that looks like a reference is never taken for one. Content without such bytes is returned unchanged.

    Args:
        content: Content blocks; anything else is returned unchanged.
        put: Stores a file.
    """
    if not isinstance(content, list):
        return content
    blocks = [_with_references(block, put) for block in content]
    return blocks if any(one is not other for one, other in zip(blocks, content, strict=True)) else content


def _with_references(block: Any, put: Put) -> Any:
    if not isinstance(block, dict):
        return block
    for kind, value in block.items():
        if not isinstance(value, dict):
            continue
        if kind == "toolResult":
            inside = with_references(value.get("content"), put)
            if inside is not value.get("content"):
                return {**block, kind: {**value, "content": inside}}
        elif isinstance(source := value.get("source"), dict) and not isinstance(source.get("bytes"), str | None):
            data = source["bytes"]
            stored = plain(data, put) if isinstance(data, (bytes, bytearray)) else f"<{type(data).__name__}>"
            return {**block, kind: {**value, "source": {**source, "bytes": stored}}}
    return block


def bytes_of(value: Any, files: FileStore | None) -> Any:
    """Return the bytes that a reference stands for.

    Args:
        value: A reference.
        files: The files of the run; None: only references that hold their content can be resolved.

    Raises:
        LedgerError: The file is missing or was changed, or it is no reference.
    """
    if isinstance(value, dict) and len(value) == 1:
        [(name, item)] = value.items()
        if name == BYTES_KEY and isinstance(item, str):
            try:
                return base64.b64decode(item, validate=True)
            except ValueError as error:
                raise LedgerError(f"a reference holds no base64: {error}") from error
        if name == FILE_KEY and isinstance(item, str):
            if files is None:
                raise LedgerError(f"file {item:.80} is needed, and the run that has it is not known")
            return files.read(item)
    raise LedgerError(f"{value!r:.80} is no reference to bytes")


def contents_in(value: Any) -> Iterator[bytes]:
    """Yield the content that references in plain data hold, at any depth; those that name a file are skipped."""
    if isinstance(value, dict):
        if len(value) == 1 and isinstance(value.get(BYTES_KEY), str):
            with suppress(LedgerError):
                yield bytes_of(value, None)
        else:
            for item in value.values():
                yield from contents_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from contents_in(item)


def with_images(content: Any, files: FileStore | None) -> Any:
    """Return content blocks with the bytes of their images, also of those in tool results.

    Only the place where an image block has its bytes is read: text and data that look like a reference stay unchanged.

    Args:
        content: Content blocks, as `plain` returned them; anything else is returned unchanged.
        files: The files of the run; None: only references that hold their content can be resolved.

    Raises:
        LedgerError: A file is missing or was changed.
    """
    if not isinstance(content, list):
        return content
    blocks = []
    for block in content:
        if isinstance(block, dict) and isinstance(image := block.get("image"), dict):
            source = image.get("source")
            if isinstance(source, dict) and isinstance(source.get("bytes"), dict):
                block = {**block, "image": {**image, "source": {**source, "bytes": bytes_of(source["bytes"], files)}}}
        elif isinstance(block, dict) and isinstance(result := block.get("toolResult"), dict):
            block = {**block, "toolResult": {**result, "content": with_images(result.get("content"), files)}}
        blocks.append(block)
    return blocks
