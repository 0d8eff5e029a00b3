"""Drift: how recorded turns would differ if they were re-tokenised or re-rendered: `measure`."""

from strands_sglang.drift.compare import Cause, Difference
from strands_sglang.drift.measure import measure
from strands_sglang.drift.page import html_page
from strands_sglang.drift.report import DriftReport, Example, Method, MethodDrift

__all__ = ["Cause", "Difference", "DriftReport", "Example", "Method", "MethodDrift", "html_page", "measure"]
