"""Offline verification of a run's ledger.

Invariant: this package shares no code with what it verifies. It decodes the ledger's bytes with `ledger.event` and
`ledger.shard`, and recomputes prompts, trajectories and digests itself; it imports no tree, trajectory or record.
"""

from strands_sglang.proof.certificate import Certificate
from strands_sglang.proof.finding import Finding, FindingKind, Verdict
from strands_sglang.proof.rescore import RescoreReport, RescoreVerdict, rescore
from strands_sglang.proof.verify import verify

__all__ = ["verify", "Certificate", "Verdict", "Finding", "FindingKind", "rescore", "RescoreReport", "RescoreVerdict"]
