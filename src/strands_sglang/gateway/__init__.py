"""Agents that are not in this process: HTTP sessions in the protocols that they speak, and agents as processes."""

from strands_sglang.gateway.process import AgentProcess, Network, OnResume, RemoteAgent
from strands_sglang.gateway.server import Gateway
from strands_sglang.gateway.session import Session

__all__ = ["AgentProcess", "Gateway", "Network", "OnResume", "RemoteAgent", "Session"]
