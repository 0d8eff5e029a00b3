"""Checks a server, a tokenizer, an agent and this machine before a run: `diagnose`.

`diagnose` runs the checks and returns a `Report`. `subject` holds what is diagnosed and the facts that checks share;
`server_checks`, `sampling_checks`, `template_checks` and `machine_checks` have one function per check.
"""

from strands_sglang.doctor.diagnose import diagnose
from strands_sglang.doctor.report import Check, Report, Status

__all__ = ["Check", "Report", "Status", "diagnose"]
