"""A root digest that is kept elsewhere or signed covers a whole run: its episodes and its run.json."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from strands_sglang.cli.main import main
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.run_dir import read_json, write_json
from strands_sglang.ledger.seal import read_seal, seal
from strands_sglang.ledger.summary import checked_row, row_line, run_rows
from strands_sglang.proof import verify
from strands_sglang.proof.finding import FindingKind, Verdict
from strands_sglang.viewer.index import RunIndex
from support.ledger.episodes import Recorder, written_run


def record(folder: Path, *, samples: int = 2, expected: int = 2, last: int = 5) -> Path:
    with written_run(folder, samples_per_task=expected, created=1.0, settings={"temperature": 1.0}) as writer:
        for sample in range(samples):
            recorder = Recorder(writer.write, sample=sample)
            recorder.call(None, context=[1, 2], sampled=[4, last])
            recorder.reward(1.0)
            recorder.end()
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return record(tmp_path / "run")


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    key = Ed25519PrivateKey.generate()
    private, public = tmp_path / "key.pem", tmp_path / "public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    private.chmod(0o600)
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


def forge(run: Path) -> None:
    """Replace a run by another one, with everything recomputed except the signature."""
    about = read_json(run / "run.json")
    shutil.rmtree(run / "ledger")
    for name in ("run.json", "seal.json"):
        (run / name).unlink()
    record(run, last=6)
    assert about == read_json(run / "run.json")


def test_expected_root(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = verify(run).root
    assert verify(run, root=f" {root.upper()}\n").verdict is Verdict.PROVED
    assert main(["verify", str(run), "--root", root]) == 0
    forge(run)
    assert verify(run).verdict is Verdict.PROVED  # without the expected root, the change is undetectable
    certificate = verify(run, root=root)
    assert certificate.verdict is Verdict.BROKEN and certificate.found[FindingKind.SEAL] == 1
    assert main(["verify", str(run), "--root", root]) == 1
    assert f"the expected root digest is {root!r}" in capsys.readouterr().out
    assert main(["verify", str(run), "--root", root, "--episode", "add/0"]) == 2


def test_root_covers_run_json(run: Path) -> None:
    root = verify(run).root
    about = read_json(run / "run.json")
    assert about is not None
    write_json(run / "run.json", {**about, "settings": {"temperature": 0.5}})
    seal(run)
    assert verify(run).verdict is Verdict.PROVED
    assert verify(run, root=root).verdict is Verdict.BROKEN


def test_seal_of_another_format_is_not_accepted(run: Path) -> None:
    sealed = read_seal(run)
    assert sealed is not None and sealed["format"] == 2
    write_json(run / "seal.json", {**sealed, "format": 1})
    certificate = verify(run)
    assert certificate.verdict is Verdict.BROKEN and "has ledger format 1" in certificate.findings[0].message


def test_missing_samples_of_a_sealed_run_are_found(tmp_path: Path) -> None:
    """The seal lists samples that never began; any other missing sample was removed."""
    run = record(tmp_path / "run", samples=2, expected=3)
    sealed = read_seal(run)
    assert sealed is not None and sealed["not_begun"] == ["add/2"]
    assert verify(run).verdict is Verdict.PROVED
    write_json(run / "seal.json", {**sealed, "not_begun": []})
    certificate = verify(run)
    assert certificate.verdict is Verdict.UNFINISHED
    assert [finding.episode for finding in certificate.findings] == ["add/2"]


def test_signed_run(run: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    private, public = map(str, keys)
    assert main(["verify", str(run), "--public-key", public]) == 1
    assert "the run is not signed" in capsys.readouterr().out
    assert main(["sign", str(run), "--key", private]) == 0
    output = capsys.readouterr().out
    assert verify(run).root in output
    assert main(["verify", str(run), "--public-key", public]) == 0
    raw = output.split()[-1]
    assert main(["verify", str(run), "--public-key", raw]) == 0
    Path(public).write_text(raw + "\n")
    assert main(["verify", str(run), "--public-key", public]) == 0
    forge(run)
    assert main(["verify", str(run)]) == 0
    assert main(["verify", str(run), "--public-key", raw]) == 1


def test_signature_of_another_key(run: Path, keys: tuple[Path, Path]) -> None:
    assert main(["sign", str(run), "--key", str(keys[0])]) == 0
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    assert verify(run, public_key=other).verdict is Verdict.BROKEN
    for content in (b"{}", b"[]", b'{"format":1}', b'{"format":1,"algorithm":"ed25519","signature":"zz"}'):
        (run / "signature.json").write_bytes(content)
        assert verify(run, public_key=keys[1]).verdict is Verdict.BROKEN


def test_invalid_keys(run: Path, tmp_path: Path) -> None:
    for content in (b"", b"-----BEGIN PUBLIC KEY-----", b"00ff", "é".encode()):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(LedgerError, match="Ed25519 public key"):
            verify(run, public_key=tmp_path / "bad")
    with pytest.raises(LedgerError, match="Ed25519 public key"):
        verify(run, public_key=tmp_path / "missing")
    curve = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "curve").write_bytes(curve)
    (tmp_path / "curve").chmod(0o600)
    for name in ("bad", "missing", "curve"):
        assert main(["sign", str(run), "--key", str(tmp_path / name)]) == 2


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_key_that_others_may_read_signs_nothing(
    run: Path, keys: tuple[Path, Path], mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    keys[0].chmod(mode)
    assert main(["sign", str(run), "--key", str(keys[0])]) == 2
    assert f"got mode {mode:o}" in (message := capsys.readouterr().err) and "chmod 600" in message
    assert not (run / "signature.json").exists()


def test_the_report_names_the_signature(run: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    def reported(public_key: Path | None = None) -> tuple[str, str]:
        certificate = verify(run, public_key=public_key)
        return certificate.to_dict()["signature"], certificate.text().partition("  signature    ")[2].partition("\n")[0]

    assert reported() == ("none", "none")
    assert reported(public_key=keys[1]) == ("invalid", "INVALID")
    assert main(["sign", str(run), "--key", str(keys[0])]) == 0
    assert reported() == ("unchecked", "not checked: no public key was given")
    assert reported(public_key=keys[1]) == ("valid", "valid")


def test_an_edited_index_changes_no_report(
    run: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows come from the events alone, whatever else is in the directory of a signed run."""

    def reports() -> list[Any]:
        found: list[Any] = []
        for command in (["show"], ["show", "--json"], ["eval", "--recorded"]):
            found.append((main([*command, str(run)]), capsys.readouterr().out))
        index = RunIndex(run)  # the viewer's table
        index.refresh()
        return [*found, index.rows_since(0)]

    assert main(["sign", str(run), "--key", str(keys[0])]) == 0
    capsys.readouterr()
    before = reports()
    (run / "index").mkdir()
    forged = [checked_row(row["id"], {**row, "reward": 99.0, "text": "forged"}) for row in run_rows(run)]
    for path in (run / "ledger").iterdir():
        (run / "index" / f"{path.stem}.jsonl").write_bytes(b"".join(map(row_line, forged)))
    assert main(["verify", str(run), "--public-key", str(keys[1])]) == 0
    capsys.readouterr()
    assert reports() == before and [code for code, _ in before[:3]] == [0, 0, 0] and before[3][1]


def test_only_a_proved_run_is_signed(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    run = record(tmp_path / "run", samples=1)
    (run / "seal.json").unlink()
    assert main(["sign", str(run), "--key", str(keys[0])]) == 2
    assert not (run / "signature.json").exists()
