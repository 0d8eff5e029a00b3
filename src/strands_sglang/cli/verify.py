"""`strands-sglang verify`: prove a ledger, and let an engine have a second look.

Invariant: the exit code is 0 only when all that was asked for is proved.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from strands_sglang.cli.run_settings import run_settings
from strands_sglang.errors import EngineError, LedgerError
from strands_sglang.ledger.run_file import read_run
from strands_sglang.ledger.shown import shown
from strands_sglang.proof.certificate import Certificate
from strands_sglang.proof.finding import FindingKind, Verdict
from strands_sglang.proof.rescore import TOLERANCE, rescore
from strands_sglang.proof.rescore_report import RescoreReport, RescoreVerdict
from strands_sglang.proof.verify import verify
from strands_sglang.rollout.template_check import check_templates

PROVED, BROKEN, UNDECIDED = 0, 1, 3
"""Exit codes: all is proved; something contradicts something else; something is missing, or not come to its end."""

_DESCRIPTION = """\
Prove offline that every prompt was the record before it, and that every trained token was sampled where it stands.

exit codes: 0 proved; 1 broken, or the engine disagrees; 2 wrong usage, no run or no such episode; 3 unfinished or
truncated, or the engine could not say. With --templates: 1 where a conversation is another text than the template
writes, though it was called proved
"""


def add(commands: Any) -> None:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "verify",
        help="prove the ledger of a run",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", metavar="DIR", help="directory of a run")
    parser.add_argument(
        "--exported", metavar="PATH", help="trajectories as JSON lines or Parquet, held against the ledger"
    )
    parser.add_argument("--exported-part", action="store_true", help="whole episodes may be left out of the export")
    parser.add_argument("--episode", metavar="ID", action="append", help="look at this one only; may be given again")
    parser.add_argument("--root", metavar="HEX", help="root digest that was kept elsewhere, held against the ledger's")
    parser.add_argument("--public-key", metavar="KEY", help="the run must be signed with this key: a path, or hex")
    parser.add_argument("--rescore", metavar="URL", help="ask this engine how likely it finds what is on record")
    parser.add_argument(
        "--tolerance", type=float, default=TOLERANCE, help="largest difference of logprobs (default %(default)g)"
    )
    parser.add_argument("--temperature", type=float, help="what was sampled with, where run.json does not say")
    parser.add_argument("--all-versions", action="store_true", help="rescore what other weights sampled as well")
    parser.add_argument(
        "--templates",
        metavar="TOKENIZER",
        help="hold every conversation against one rendering of this tokenizer's chat template (name or path)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prove a ledger; return the exit code.

    Raises:
        LedgerError: There is no ledger, or no such episode.
    """
    certificate = verify(
        options.directory,
        exported=options.exported,
        exported_part=options.exported_part,
        episodes=options.episode,
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
            report = asyncio.run(
                rescore(
                    options.directory,
                    options.rescore,
                    episodes=options.episode,
                    tolerance=options.tolerance,
                    all_versions=options.all_versions,
                    temperature=options.temperature,
                )
            )
        except EngineError as error:
            failure = f"{options.rescore}: {error}"
    templates = None
    if options.templates:
        settings = run_settings(read_run(Path(options.directory)), None, {})
        templates = check_templates(
            options.directory, tokenizer=options.templates, episodes=options.episode, **settings.model_options
        )
    if options.json:
        told: dict[str, Any] = certificate.to_dict()
        if options.rescore:
            told["rescore"] = {"verdict": "nothing", "failures": [failure]} if report is None else report.to_dict()
        if templates is not None:
            told["templates"] = templates.to_dict()
        print(_json(told))
    else:
        print(certificate.text())
        if options.rescore:
            print("\n" + (f"NOTHING  {shown(failure)}" if report is None else report.text()))
        if templates is not None:
            print("\n" + "\n".join(map(shown, templates.text().splitlines())))
    if templates is not None and templates.differences:
        return BROKEN
    return exit_code(certificate, report, asked=bool(options.rescore))


def _json(told: dict[str, Any]) -> str:
    """Return JSON of printable ASCII. A number that is none is null."""
    return json.dumps(json.loads(json.dumps(told), parse_constant=lambda _: None), indent=2)


def exit_code(certificate: Certificate, report: RescoreReport | None, *, asked: bool) -> int:
    """Return the exit code for what was found.

    Args:
        certificate: What the ledger says.
        report: What an engine says; None: it said nothing.
        asked: Whether an engine was to be asked.
    """
    rescored = None if not asked else RescoreVerdict.NOTHING if report is None else report.verdict
    if certificate.verdict is Verdict.BROKEN or rescored is RescoreVerdict.DIFFERS:
        return BROKEN
    if certificate.verdict is not Verdict.PROVED or rescored is RescoreVerdict.NOTHING:
        return UNDECIDED
    return PROVED
