"""The checks of a setup: server, tokenizer, template, sampling, agent, machine. `catalogue` lists them.

A run makes the quick ones before it starts (`runs.preflight`), `strands_sglang.doctor` makes all.
"""
