"""A ledger proved: from its bytes alone, by code that shares nothing with what wrote it."""

from strands_sglang.proof.certificate import Certificate
from strands_sglang.proof.finding import Finding, FindingKind, Verdict
from strands_sglang.proof.rescore import rescore
from strands_sglang.proof.rescore_report import RescoreReport, RescoreVerdict
from strands_sglang.proof.verify import verify

__all__ = ["verify", "Certificate", "Verdict", "Finding", "FindingKind", "rescore", "RescoreReport", "RescoreVerdict"]
