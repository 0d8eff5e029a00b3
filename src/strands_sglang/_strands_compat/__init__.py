"""Adaptations that depend on internals of the Strands SDK.

`agents` finds the calling agent and enables structured output, `fast_agents` runs agents without recursion and repeated
work, `logs` drops records of intended ends, `middleware` allows a tool to be left running, `guard` reports an SDK that
is not recognised.

Invariants: importing this package, making a model and running a plain agent change nothing in the SDK; only the block
`fast_agents` does, and restores it. No other module of this package reads or replaces anything that the SDK does not
document. Each adaptation checks that the SDK looks as expected; if it does not, the adaptation is not applied, which is
logged once and costs speed or comfort, never exactness. `tests/strands_compat/` has a canary for each: a test that
fails when the SDK changes, and says what to check.

All were written for and tested with strands-agents 1.62.
"""
