"""`strands-sglang sign`: put a name under a run that was proved.

Invariant: nothing is signed but what `verify` has just proved.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.run_file import write_json
from strands_sglang.ledger.shown import shown
from strands_sglang.proof.signature import SIGNATURE, signed
from strands_sglang.proof.verify import verify

_DESCRIPTION = """\
Prove a run and sign its root digest with an Ed25519 key. `verify --public-key` then tells whether anything was changed
since. Keys: openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out public.pem
"""


def add(commands: Any) -> None:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "sign",
        help="sign a run that is proved",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", metavar="DIR", help="directory of a run")
    parser.add_argument("--key", metavar="PATH", required=True, type=Path, help="private key in PEM")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Sign a run; return the exit code.

    Raises:
        LedgerError: It is not proved, or there is no such key.
    """
    certificate = verify(options.directory)
    if not certificate.proved:
        verdict = certificate.verdict.value
        raise LedgerError(f"the run in {options.directory} is {verdict}, and only what is proved is signed")
    told = signed(options.key, certificate.run, certificate.root)
    write_json(Path(options.directory) / SIGNATURE, told)
    print(shown(f"signed  root {certificate.root}  public key {told['public_key']}"))
    return 0
