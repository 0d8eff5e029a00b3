"""Tools for agents: what a model may be given to work with, safely."""

from strands_sglang.tools.isolation import Isolation, Rights
from strands_sglang.tools.outcome import Ending, Outcome
from strands_sglang.tools.python_tool import python_sandbox
from strands_sglang.tools.sandbox import PythonSandbox
from strands_sglang.tools.sandbox_limits import SandboxLimits

__all__ = ["python_sandbox", "PythonSandbox", "SandboxLimits", "Outcome", "Ending", "Isolation", "Rights"]
