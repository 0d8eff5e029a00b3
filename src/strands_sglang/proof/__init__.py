"""A ledger proved: its bytes are read with the ledger's decoder, everything else is worked out a second time.

Nothing here uses the trees, trajectories or records of those who wrote it; `event`, `packing` and `shard` of the ledger
say what its bytes are.
"""

from strands_sglang.proof.certificate import Certificate
from strands_sglang.proof.finding import Finding, FindingKind, Verdict
from strands_sglang.proof.rescore import rescore
from strands_sglang.proof.rescore_report import RescoreReport, RescoreVerdict
from strands_sglang.proof.verify import verify

__all__ = ["verify", "Certificate", "Verdict", "Finding", "FindingKind", "rescore", "RescoreReport", "RescoreVerdict"]
