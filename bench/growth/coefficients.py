"""The measured costs that the model of growth multiplies, and the file they are in.

`coefficients.json` holds each value with how it was measured. `python bench/growth --measure` writes it
(`measure.py`); everything else reads it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent / "coefficients.json"
"""The file."""


@dataclass(frozen=True)
class Coefficients:
    """Costs of this package and the Strands SDK; linear in what they multiply."""

    cpu_ms_episode: float
    """CPU milliseconds of an episode, besides its turns."""
    cpu_ms_turn: float
    """CPU milliseconds of a turn, besides its tokens and what came before."""
    cpu_us_earlier_turn: float
    """CPU microseconds of a turn for each turn before it."""
    cpu_us_prompt_token: float
    """CPU microseconds of a token of a request, including those that earlier requests had."""
    cpu_us_sampled_token: float
    """CPU microseconds of a sampled token: reading the response, decoding, recording."""
    cpu_us_context_token: float
    """CPU microseconds of a new context token: rendering, encoding, recording."""
    memory_kb_episode: float
    """KB of a live episode, besides its turns."""
    memory_kb_turn: float
    """KB of each of its turns, besides tokens."""
    memory_bytes_token: float
    """Bytes of each of its tokens, with the text of the messages."""
    wire_up_bytes_turn: float
    """Bytes of a request, besides its tokens."""
    wire_up_bytes_token: float
    """Bytes of a request per prompt token."""
    wire_down_bytes_turn: float
    """Bytes of a response, besides its tokens."""
    wire_down_bytes_token: float
    """Bytes of a response per sampled token."""
    ledger_bytes_episode: float
    """Bytes of the ledger per episode, besides its turns."""
    ledger_bytes_turn: float
    """Bytes of the ledger per turn, besides tokens."""
    ledger_bytes_sampled: float
    """Bytes of the ledger per sampled token, with its logprob and text."""
    ledger_bytes_context: float
    """Bytes of the ledger per new context token, with its text."""
    driver_ms_episode: float
    """CPU milliseconds of the driver per finished episode, with Ray workers."""
    driver_kb_episode: float
    """KB that the driver holds per finished episode, until you drop the `RunResult`."""
    driver_seal_s_mtoken: float
    """CPU seconds of the driver for sealing the ledger at the end of a run, per million tokens."""
    worker_start_seconds: float
    """Seconds until a new Ray worker runs episodes."""

    def turn_cpu_ms(self, turns: float, context: float, sampled: float, result: float) -> float:
        """Return the mean CPU milliseconds of a turn.

        Args:
            turns: Turns of the episode.
            context: Mean number of prompt tokens over its turns.
            sampled: Sampled tokens per turn.
            result: New context tokens per turn.
        """
        tokens = (
            self.cpu_us_prompt_token * context
            + self.cpu_us_sampled_token * sampled
            + self.cpu_us_context_token * result
        )
        earlier = self.cpu_us_earlier_turn * (turns - 1) / 2
        return self.cpu_ms_episode / turns + self.cpu_ms_turn + (earlier + tokens) / 1e3


def load(path: Path = FILE) -> Coefficients:
    """Return the coefficients of a file."""
    stored: dict[str, Any] = json.loads(path.read_text())
    return Coefficients(**{one.name: stored[one.name]["value"] for one in fields(Coefficients)})


def save(values: Coefficients, sources: dict[str, str], about: dict[str, Any], path: Path = FILE) -> None:
    """Write coefficients.

    Args:
        values: The coefficients.
        sources: How each was measured, by the first word of its name ("cpu", "memory", "wire", "ledger", ...).
        about: Machine, versions, and how well the fits match.
        path: The file.
    """
    stored: dict[str, Any] = {"about": about, "measured_with": sources}
    for one in fields(Coefficients):
        unit = "_".join(one.name.split("_")[1:])
        stored[one.name] = {"value": round(getattr(values, one.name), 4), "unit": unit}
    path.write_text(json.dumps(stored, indent=1) + "\n")
