"""Adaptations that depend on internals of the Strands SDK.

`agents` finds the calling agent and enables structured output, `event_loop` runs agents of our models without recursion
and unused events, with `model_calls` (whole replies) and `copies` (cheap copies of messages); `invocation` runs other
agents in chunks; `logs` and `tracing` avoid unnecessary log records and span data, `middleware` allows a tool to be
left running, `guard` reports an SDK that is not recognised.

Invariant: no other module of this package reads or replaces anything that the SDK does not document. Each adaptation
checks that the SDK looks as expected; if it does not, the adaptation is not applied, which is logged once and costs
speed or comfort, never exactness. `tests/strands_compat/` has a canary for each: a test that fails when the SDK
changes, and says what to check.

All were written for and tested with strands-agents 1.62.
"""
