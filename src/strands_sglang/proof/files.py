"""Reads the files of a run and compares them with its seal (`RunFiles`), and signs a run's root digest.

The Ed25519 signature of the root digest is stored in signature.json; it requires the extra `sign` (`cryptography`).
Anyone who changes a ledger can recompute every digest and the seal, but not the signature of another person's key.

Invariants: every iteration over a run's files reads the same bytes, even while a writer appends more. A signature
covers the run's id and the root digest that `verify` computes from the bytes, never a value that a file states about
itself.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from strands_sglang._checks import install
from strands_sglang._files import open_file
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.encoding import episode_of
from strands_sglang.ledger.run_dir import FORMAT, LARGEST_FILE, check_format, read_json, shard_paths
from strands_sglang.ledger.shard import ShardReader, ShardState, ShardVerdict
from strands_sglang.proof.certificate import FileState, SealState
from strands_sglang.proof.chain import RawEvent
from strands_sglang.proof.finding import Finding, FindingKind

_SHA256 = re.compile("[0-9a-f]{64}")
_LARGEST_LOSS = 1 << 26  # bytes that cannot be read, up to which a shard is compared with its seal
_PIECE = 1 << 20  # a seal contains the digest of each MiB of a file


class RunFiles:
    """Events in the files of a run, and problems with the files."""

    def __init__(self, directory: Path) -> None:
        """Read all files once.

        Args:
            directory: Directory of the run.

        Raises:
            LedgerError: The directory contains no run, or one of another format.
        """
        self.findings: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self.states: list[FileState] = []
        if not directory.is_dir():
            what = "is a file" if directory.exists() else "does not exist"
            raise LedgerError(f"{directory} is not the directory of a run: it {what}")
        check_format(directory)
        paths = shard_paths(directory)
        self.run = self._read_json(directory / "run.json")
        """Content of run.json; None if it is missing or unreadable."""
        self.seal = self._read_json(directory / "seal.json")
        """Content of seal.json; None if it is missing or unreadable."""
        if not paths and self.run is None and self.seal is None and not self.findings:
            raise LedgerError(f"{directory} is not the directory of a run: it has no run.json and no ledger")
        if self.run is None and not self.findings:
            self._add(FindingKind.FILE_MISSING, "run.json", None, "run.json does not exist")
        self._directory = directory
        self.run_file = None if self.run is None else _digests(directory / "run.json", 1 << 30)[0]
        """Digest of run.json, in hex; None if it cannot be read."""
        self._paths = {path.name: path for path in paths}
        for path in paths:
            self._check_shard(path)
        self._check_seal()

    @property
    def lost(self) -> bool:
        """Whether shards, or ends of shards, are missing."""
        kinds = (FindingKind.FILE_SHORTENED, FindingKind.FILE_MISSING)
        return any(finding.kind in kinds and finding.file != "run.json" for finding in self.findings)

    @property
    def whole(self) -> bool:
        """Whether the shards are those that were sealed: none missing, cut or added."""
        return not self.lost and not any(finding.kind is FindingKind.FILE_ADDED for finding in self.findings)

    @property
    def seal_state(self) -> SealState:
        """Whether the files match the seal."""
        if self.seal is None:
            return SealState.NONE
        return SealState.DIFFERS if self.findings else SealState.AGREES

    def __iter__(self) -> Iterator[RawEvent]:
        for state in self.states:
            for block in ShardReader(self._paths[state.name], stop=state.bytes):
                for raw in block.events:
                    yield RawEvent(raw, state.name, block.at)

    def _read_json(self, path: Path) -> dict[str, Any] | None:
        try:
            return read_json(path)
        except LedgerError as error:
            self._add(FindingKind.FORM, path.name, None, str(error))
            return None

    def _add(self, kind: FindingKind, name: str, byte: int | None, message: str) -> None:
        self.findings.append(Finding(kind, message, file=name, byte=byte))

    def _check_shard(self, path: Path) -> None:
        """Read a shard, count its events, and compare it with the seal."""
        reader = ShardReader(path)
        for block in reader:
            for raw in block.events:
                try:
                    self.counts[episode_of(raw)] += 1
                except LedgerError as error:
                    self._add(FindingKind.FORM, path.name, block.at, str(error))
        state = reader.state
        if sum(end - start for start, end in state.lost) > _LARGEST_LOSS:
            self.states.append(FileState(path.name, state.bytes, state.verdict.value, ""))
            self._add(FindingKind.FILE_DAMAGED, path.name, state.at, state.message)
            return
        digest, pieces = _digests(path, state.bytes)
        self.states.append(FileState(path.name, state.bytes, state.verdict.value, digest))
        sealed = self.seal.get("shards") if self.seal is not None else None
        if not isinstance(sealed, dict):
            self._check_unsealed(state)
            return
        if path.name not in sealed:
            message = "the file is not in the seal: the run continued after it was sealed"
            self._add(FindingKind.FILE_ADDED, path.name, None, message)
            self._check_unsealed(state)
            return
        kind, byte, message = _compare_with_seal(state, digest, pieces, sealed[path.name])
        if kind is not None:
            self._add(kind, path.name, byte, message)
        if state.verdict is ShardVerdict.DAMAGED:  # a torn shard that matches its seal is accepted
            self._add(FindingKind.FILE_DAMAGED, path.name, state.at, state.message)

    def _check_unsealed(self, state: ShardState) -> None:
        """Report problems that are visible without a seal."""
        name = state.path.name
        if state.verdict is ShardVerdict.DAMAGED:
            self._add(FindingKind.FILE_DAMAGED, name, state.at, state.message)
        elif state.verdict is ShardVerdict.TORN:
            self._add(FindingKind.FILE_SHORTENED, name, state.at, state.message)
        elif not state.closed:
            message = "the file was not closed: its writer is running or died, or the end of the file is missing"
            self._add(FindingKind.FILE_OPEN, name, state.bytes, message)

    def _check_seal(self) -> None:
        if self.seal is None:
            message = "the run has no seal: it is not finished"
            self.findings.append(Finding(FindingKind.UNSEALED, message))
            return
        sealed = self.seal.get("shards")
        if not isinstance(sealed, dict):
            self._add(FindingKind.FORM, "seal.json", None, "the seal does not list the sealed files")
            return
        for name in sorted(set(sealed) - set(self._paths)):
            self._add(FindingKind.FILE_MISSING, name, None, "the file was sealed and does not exist")
        if self.run is not None and self.seal.get("run_file") != self.run_file:
            self._add(FindingKind.FILE_CHANGED, "run.json", None, "the file differs from the sealed one")
        if self.run is not None and self.seal.get("run") != self.run.get("run"):
            self._add(FindingKind.SEAL, "seal.json", None, "the seal belongs to another run")


def check_content(directory: Path, referenced: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each file that events refer to and that is missing or was changed.

    Args:
        directory: Directory of the run.
        referenced: SHA-256 of each file in hex, with an episode that refers to it.
    """
    for digest, episode in sorted(referenced.items()):
        if not _SHA256.fullmatch(digest):
            yield Finding(FindingKind.FORM, f"{digest!r:.100} is not the digest of a file", episode)
            continue
        stem = directory / "files" / digest[:2] / digest[2:]
        path = next((path for path in (stem.with_suffix(".png"), stem.with_suffix(".bin")) if path.is_file()), None)
        name = str(stem.relative_to(directory))
        if path is None:
            message = "an image or another file that the episode refers to does not exist"
            yield Finding(FindingKind.FILE_MISSING, message, episode, file=name)
            continue
        whole = hashlib.sha256()
        try:
            with open_file(path) as file:
                if file.seek(0, 2) > LARGEST_FILE:
                    raise OSError(f"it must have at most {LARGEST_FILE} bytes")
                file.seek(0)
                while piece := file.read(_PIECE):
                    whole.update(piece)
        except OSError as error:
            yield Finding(FindingKind.FILE_DAMAGED, f"the file cannot be read: {error}", episode, file=name)
            continue
        if whole.hexdigest() != digest:
            message = "an image or another file that the episode refers to was changed"
            yield Finding(FindingKind.FILE_CHANGED, message, episode, file=name)


def _digests(path: Path, count: int) -> tuple[str, list[str]]:
    """Return the digest of the first `count` bytes of a file, and the digest of each MiB of them."""
    whole = hashlib.blake2b(digest_size=16)
    pieces: list[str] = []
    if count <= 0:
        return whole.hexdigest(), pieces
    with path.open("rb") as file:
        while count > 0 and (piece := file.read(min(_PIECE, count))):
            whole.update(piece)
            pieces.append(hashlib.blake2b(piece, digest_size=16).hexdigest())
            count -= len(piece)
    return whole.hexdigest(), pieces


def _compare_with_seal(
    state: ShardState, digest: str, pieces: list[str], sealed: Any
) -> tuple[FindingKind | None, int | None, str]:
    """Return how a file differs from its seal: finding kind (None if it does not), first differing byte, message."""
    size = sealed.get("bytes") if isinstance(sealed, Mapping) else None
    known = sealed.get("pieces") if isinstance(sealed, Mapping) else None
    if type(size) is not int or not isinstance(known, list):
        return FindingKind.FORM, None, "the seal does not state the file's size and digests"
    sizes = f"{size} bytes were sealed, the file has {state.bytes}"
    whole = min(state.bytes, size) // _PIECE  # pieces that are complete in the seal and in the file
    for number in range(whole):
        if number >= len(known) or pieces[number] != known[number]:
            return FindingKind.FILE_CHANGED, number * _PIECE, "the MiB from here on differs from the sealed one"
    if state.bytes < size and state.closed and state.verdict is ShardVerdict.WHOLE:
        return FindingKind.FILE_CHANGED, whole * _PIECE, f"{sizes} and is complete: it is another file"
    if state.bytes < size:
        return FindingKind.FILE_SHORTENED, state.bytes, sizes
    if state.bytes > size:
        return FindingKind.FILE_CHANGED, size, sizes
    if digest != sealed.get("digest"):
        return FindingKind.FILE_CHANGED, whole * _PIECE, "the bytes from here on differ from the sealed ones"
    return None, None, ""


SIGNATURE = "signature.json"
"""Name of the file, next to seal.json."""

_INSTALL = f"signatures require the package cryptography: {install('sign')}; or pip install cryptography"


def sign_root(private_key: Path, run: str | None, root: str) -> dict[str, Any]:
    """Return the content of signature.json.

    Args:
        private_key: Path of an Ed25519 private key in PEM format, without a password.
        run: Id of the run.
        root: Root digest of the run.

    Raises:
        LedgerError: The key cannot be read, others may read it, or `cryptography` is not installed.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise LedgerError(_INSTALL) from error
    try:
        mode = private_key.stat().st_mode & 0o777
        if os.name == "posix" and mode & 0o077:
            raise LedgerError(
                f"{private_key} must be readable by its owner only, got mode {mode:o}: anyone who read it can sign in "
                f"your name. Run `chmod 600 {private_key}`, or use a new key if others may have read this one"
            )
        key = load_pem_private_key(private_key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise LedgerError(f"{private_key} is not an Ed25519 key in PEM format without a password: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise LedgerError(
            f"{private_key} must be an Ed25519 key, got another kind; create one with "
            "openssl genpkey -algorithm ed25519 -out key.pem"
        )
    return {
        "format": FORMAT,
        "algorithm": "ed25519",
        "public_key": key.public_key().public_bytes_raw().hex(),
        "signature": key.sign(_message(run, root)).hex(),
    }


def read_public_key(source: str | Path) -> bytes:
    """Return a public key as 32 bytes.

    Args:
        source: Path of a file with the key in PEM format or in hex, or the key itself in hex.

    Raises:
        LedgerError: The key cannot be read, or `cryptography` is not installed.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as error:
        raise LedgerError(_INSTALL) from error
    try:
        given = str(source).strip()
        if len(given) == 64 and not Path(given).exists():
            return bytes.fromhex(given)
        content = Path(given).read_bytes()
        if not content.lstrip().startswith(b"-----"):
            raw = bytes.fromhex(content.decode("ascii").strip())
            if len(raw) != 32:
                raise ValueError(f"expected 32 bytes, got {len(raw)}")
            return raw
        key = load_pem_public_key(content)
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError("it is another kind of key")
        return key.public_bytes_raw()
    except (OSError, ValueError, TypeError) as error:
        raise LedgerError(f"{str(source)!r:.100} is not an Ed25519 public key: {error}") from error


def signature_error(directory: Path, key: bytes, run: str | None, root: str) -> str:
    """Return why the signature of a run is not valid, or an empty string if it is.

    Args:
        directory: Directory of the run.
        key: Public key that must have signed it.
        run: Id of the run.
        root: Root digest of the run, computed from its bytes.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        stated: Mapping[str, Any] | None = read_json(directory / SIGNATURE)
    except LedgerError as error:
        return str(error)
    if stated is None:
        return "the run is not signed"
    try:
        if stated.get("algorithm") != "ed25519":
            return f"the signature algorithm must be ed25519, got {stated.get('algorithm')!r:.50}"
        Ed25519PublicKey.from_public_bytes(key).verify(bytes.fromhex(stated["signature"]), _message(run, root))
    except (InvalidSignature, ValueError, TypeError, KeyError):
        return "the signature does not match this run, its root digest and this key"
    return ""


def _message(run: str | None, root: str) -> bytes:
    return b"strands-sglang run\0" + str(run).encode("utf-8", "surrogatepass") + b"\0" + root.encode()
