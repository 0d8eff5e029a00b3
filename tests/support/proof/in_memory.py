"""Verification of events in memory: `verify_events`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from strands_sglang.proof import Certificate
from strands_sglang.proof.export import ExportComparison
from strands_sglang.proof.verify import InMemoryEvents, RunVerifier


def verify_events(
    events: Iterable[bytes],
    *,
    run: Mapping[str, Any] | None = None,
    seal: Mapping[str, Any] | None = None,
    exported: Any = None,
) -> Certificate:
    """Verify encoded events of any number of episodes, in any order, with the content of run.json and seal.json."""
    certificate = Certificate()
    verifier = RunVerifier(certificate, run, None if exported is None else ExportComparison(exported), None)
    source = InMemoryEvents(events)
    for finding in source.findings:
        certificate.add(finding)
    verifier.check_episodes(source)
    run_file = None if seal is None else seal.get("run_file")
    known = isinstance(run_file, str) and re.fullmatch("[0-9a-f]{32}", run_file)
    verifier.finish(seal, run_file=run_file if known else None)
    return certificate
