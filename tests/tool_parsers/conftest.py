"""Cases of each family for the conformance tests."""

from support.tool_parsers.checks import conformance_cases as pytest_generate_tests

__all__ = ["pytest_generate_tests"]
