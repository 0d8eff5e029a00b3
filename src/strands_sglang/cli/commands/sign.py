"""`strands-sglang sign`: signs the root digest of a proved run.

Invariant: a run is signed only if `verify` proves it in the same command.
"""

from __future__ import annotations

from pathlib import Path

from strands_sglang._terminal import escape_for_terminal
from strands_sglang.cli import _command as cli
from strands_sglang.errors import LedgerError


def run(directory: str, key: str, as_json: bool) -> int:
    """Verify a run and sign its root digest with an Ed25519 key. The signature is written to signature.json in the
    run's directory; `verify --public-key` then detects any later change. Requires the extra `sign`.
    """
    from strands_sglang.ledger.run_dir import write_json
    from strands_sglang.proof.files import SIGNATURE, sign_root
    from strands_sglang.proof.verify import verify

    certificate = verify(directory)
    if not certificate.proved:
        raise LedgerError(
            f"the run in {directory} must be proved to be signed, got {certificate.verdict.value}; run "
            "`strands-sglang verify` for details"
        )
    signature = sign_root(Path(key), certificate.run, certificate.root)
    write_json(Path(directory) / SIGNATURE, signature)
    if as_json:
        print(cli.json_text({"run": certificate.run, "root": certificate.root, "public_key": signature["public_key"]}))
        return 0
    print(escape_for_terminal(f"signed  root {certificate.root}  public key {signature['public_key']}"))
    return 0


command = cli.Command(
    "sign",
    callback=run,
    params=[
        cli.run_argument(),
        cli.option("--key", "Ed25519 private key in PEM format", metavar="PATH", required=True),
        cli.json_option(),
    ],
    exit_codes={
        0: "the run is proved and signed",
        2: "invalid arguments, no such run or key, or the run is not proved",
    },
    examples=[
        "$ openssl genpkey -algorithm ed25519 -out key.pem",
        "$ openssl pkey -in key.pem -pubout -out public.pem",
        "sign runs/first --key key.pem",
        "verify runs/first --public-key public.pem",
    ],
)
