"""Who stands behind a run: an Ed25519 signature of its root, in signature.json. Needs `cryptography`, the extra `sign`.

Whoever changes a ledger can work out everything anew, the seal included, but not the signature of somebody else.

Invariant: what is signed is the root that `verify` works out from the bytes, and the run's id; never what a file says
of itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strands_sglang.errors import LedgerError
from strands_sglang.extras import install
from strands_sglang.ledger.run_file import read_json

SIGNATURE = "signature.json"
"""Name of the file, beside seal.json."""

_INSTALL = f"signatures need the package cryptography: {install('sign')}; or pip install cryptography"


def signed(private_key: Path, run: str | None, root: str) -> dict[str, Any]:
    """Return what signature.json is to say.

    Args:
        private_key: Path of an Ed25519 key in PEM, without a password.
        run: Id of the run.
        root: Its root digest.

    Raises:
        LedgerError: There is no such key, or `cryptography` is missing.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise LedgerError(_INSTALL) from error
    try:
        key = load_pem_private_key(private_key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise LedgerError(f"{private_key} is not an Ed25519 key in PEM without a password: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise LedgerError(f"{private_key} is another kind of key: openssl genpkey -algorithm ed25519 makes one")
    return {
        "format": 1,
        "algorithm": "ed25519",
        "public_key": key.public_key().public_bytes_raw().hex(),
        "signature": key.sign(_message(run, root)).hex(),
    }


def read_public_key(source: str | Path) -> bytes:
    """Return a public key as 32 bytes.

    Args:
        source: Path of a file that has it in PEM or in hex, or the key in hex.

    Raises:
        LedgerError: It is none, or `cryptography` is missing.
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
                raise ValueError(f"{len(raw)} bytes")
            return raw
        key = load_pem_public_key(content)
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError("another kind of key")
        return key.public_bytes_raw()
    except (OSError, ValueError, TypeError) as error:
        raise LedgerError(f"{str(source)!r:.100} is not an Ed25519 public key: {error}") from error


def check_signature(directory: Path, key: bytes, run: str | None, root: str) -> str:
    """Return what is wrong with the signature of a run; "": nothing.

    Args:
        directory: The run's.
        key: The public key that must have signed it.
        run: Id of the run.
        root: Its root digest, worked out from the bytes.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        told: Mapping[str, Any] | None = read_json(directory / SIGNATURE)
    except LedgerError as error:
        return str(error)
    if told is None:
        return "the run is not signed"
    try:
        if told.get("algorithm") != "ed25519":
            return f"it was signed in another way: {told.get('algorithm')!r:.50}"
        Ed25519PublicKey.from_public_bytes(key).verify(bytes.fromhex(told["signature"]), _message(run, root))
    except (InvalidSignature, ValueError, TypeError, KeyError):
        return "the signature is not of this run and its root by this key"
    return ""


def _message(run: str | None, root: str) -> bytes:
    return b"strands-sglang run\0" + str(run).encode("utf-8", "surrogatepass") + b"\0" + root.encode()
