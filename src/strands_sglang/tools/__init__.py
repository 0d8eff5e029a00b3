"""Tools for agents: a Python sandbox for model-written code."""

from strands_sglang.tools.sandbox import PythonSandbox, python_sandbox
from strands_sglang.tools.sandbox_types import Isolation, Privileges, SandboxEndReason, SandboxLimits, SandboxResult

__all__ = [
    "python_sandbox",
    "PythonSandbox",
    "SandboxLimits",
    "SandboxResult",
    "SandboxEndReason",
    "Isolation",
    "Privileges",
]
