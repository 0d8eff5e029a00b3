"""Tools for agents: sandboxes for model-written code and commands."""

from strands_sglang.tools.sandbox import PythonSandbox, python_sandbox
from strands_sglang.tools.sandbox_types import Isolation, Privileges, SandboxEndReason, SandboxLimits, SandboxResult
from strands_sglang.tools.shell_sandbox import ShellSandbox

__all__ = [
    "python_sandbox",
    "PythonSandbox",
    "ShellSandbox",
    "SandboxLimits",
    "SandboxResult",
    "SandboxEndReason",
    "Isolation",
    "Privileges",
]
