"""`strands-sglang verify`: verifies a ledger, and optionally compares it with an export, an engine or a template.

Invariant: the exit code is 0 only if everything that was requested is proved.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from strands_sglang.cli import _command as cli
from strands_sglang.errors import ConfigurationError, EngineError, LedgerError

if TYPE_CHECKING:
    from strands_sglang.proof import Certificate, RescoreReport

PROVED, BROKEN, UNDECIDED = 0, 1, 3  # exit codes: proved; the record contradicts itself; data is missing


def run(**arguments: Any) -> int:
    """Verify a run offline, from its files alone: every prompt that was sent equals the recorded branch, and every
    trained token was sampled at its position.
    """
    from strands_sglang._terminal import escape_for_terminal
    from strands_sglang.proof.finding import FindingKind
    from strands_sglang.proof.verify import verify

    options = SimpleNamespace(**arguments)
    certificate = verify(
        options.directory,
        exported=options.exported,
        exported_part=options.exported_part,
        episodes=options.episode or None,
        root=options.root,
        public_key=options.public_key,
    )
    if options.episode:
        missing = [finding.episode for finding in certificate.findings if finding.kind is FindingKind.NOT_BEGUN]
        if missing:
            raise LedgerError(f"the ledger in {options.directory} has no episode {', '.join(map(repr, missing))}")
    report, failure = None, ""
    if options.rescore:
        try:
            report = _rescore(options)
        except EngineError as error:
            failure = f"{options.rescore}: {error}"
    templates = _check_templates(options) if options.templates else None
    if options.as_json:
        result: dict[str, Any] = certificate.to_dict()
        if options.rescore:
            result["rescore"] = {"verdict": "nothing", "failures": [failure]} if report is None else report.to_dict()
        if templates is not None:
            result["templates"] = templates.to_dict()
        print(cli.json_text(result, indent=2))
    else:
        print(certificate.text())
        if options.rescore:
            print("\n" + (f"NOTHING  {escape_for_terminal(failure)}" if report is None else report.text()))
        if templates is not None:
            print("\n" + "\n".join(map(escape_for_terminal, templates.text().splitlines())))
    if templates is not None and templates.differences:
        return BROKEN
    return _exit_code(certificate, report, rescored=bool(options.rescore))


def _rescore(options: SimpleNamespace) -> RescoreReport:
    from strands_sglang._async import run_async
    from strands_sglang.proof.rescore import TOLERANCE, rescore

    return run_async(
        rescore(
            options.directory,
            options.rescore,
            episodes=options.episode or None,
            tolerance=TOLERANCE if options.tolerance is None else options.tolerance,
            all_versions=options.all_versions,
            temperature=options.temperature,
            adapters=_adapters(options.adapter),
        )
    )


def _adapters(given: Sequence[str]) -> dict[str, str]:
    """Return the adapters of `--adapter RECORDED=LOADED`."""
    for one in given:
        if "=" not in one:
            raise ConfigurationError(f"--adapter must be RECORDED=LOADED, got {one!r:.100}")
    return {name: loaded for name, _, loaded in (one.partition("=") for one in given)}


def _check_templates(options: SimpleNamespace) -> Any:
    from strands_sglang.cli._recorded_run import open_run, run_settings
    from strands_sglang.runs.offline.template_check import check_templates

    settings = run_settings(open_run(options.directory))
    return check_templates(
        options.directory, tokenizer=options.templates, episodes=options.episode or None, **settings.model_options
    )


def _exit_code(certificate: Certificate, report: RescoreReport | None, *, rescored: bool) -> int:
    """Return the exit code; `report` is None if the engine did not respond or rescoring was not requested."""
    from strands_sglang.proof.finding import Verdict
    from strands_sglang.proof.rescore import RescoreVerdict

    verdict = None if not rescored else RescoreVerdict.NOTHING if report is None else report.verdict
    if certificate.verdict is Verdict.BROKEN or verdict is RescoreVerdict.DIFFERS:
        return BROKEN
    if certificate.verdict is not Verdict.PROVED or verdict is RescoreVerdict.NOTHING:
        return UNDECIDED
    return PROVED


command = cli.Command(
    "verify",
    callback=run,
    params=[
        cli.run_argument(),
        cli.episode_option(),
        cli.option(
            "--exported", "compare exported trajectories (JSON Lines or Parquet) with the ledger", metavar="PATH"
        ),
        cli.flag("--exported-part", "allow whole episodes to be missing from the export"),
        cli.option("--root", "root digest kept elsewhere, to compare with the ledger's", metavar="HEX"),
        cli.option("--public-key", "key that must have signed the run: a path, or hex", metavar="KEY"),
        cli.option("--rescore", "recompute logprobs on this engine and compare", metavar="URL"),
        cli.option("--tolerance", "largest accepted difference of logprobs (default: 0.001)", float, metavar="X"),
        cli.option(
            "--temperature", "temperature the run was sampled with (default: the one in run.json)", float, metavar="X"
        ),
        cli.flag("--all-versions", "also rescore tokens of other weight versions"),
        cli.option(
            "--adapter",
            "name under which the engine of --rescore has a recorded LoRA adapter (empty: merged weights); can be "
            "repeated",
            metavar="RECORDED=LOADED",
            multiple=True,
        ),
        cli.option(
            "--templates",
            "compare every conversation with a full rendering of this tokenizer's chat template (name or path)",
            metavar="TOKENIZER",
        ),
        cli.json_option(),
    ],
    exit_codes={
        0: "proved",
        1: "broken; or logprobs (--rescore) or rendered conversations (--templates) differ",
        2: "invalid arguments, or no such run, episode, export or key",
        3: "unfinished, empty (no trained token), or files are missing; or logprobs could not be compared (--rescore)",
    },
    examples=[
        "verify runs/first",
        "verify runs/first --exported train.jsonl",
        "verify runs/first --root 3f0c... --json",
        "verify runs/first --public-key public.pem",
        "verify runs/first --rescore http://localhost:30000",
        "verify runs/first --templates Qwen/Qwen3-8B",
    ],
)
