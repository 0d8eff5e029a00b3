"""The settings of one run, its name, and the policies that runs start from. Needs only the standard library."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from arms import ARMS, Arm

ROOT = Path(__file__).resolve().parent.parent.parent
POLICIES = ROOT / "lab" / "tool_policy"


def cache() -> Path:
    """Return the folder of policies that are made by `warmup.py`: in the lab's cache, outside the checkout."""
    if own := os.environ.get("STRANDS_SGLANG_LAB"):
        return Path(own).expanduser().resolve() / "retokenization"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "strands-sglang" / "lab" / "retokenization"


def policy_folder(name: str) -> Path:
    """Return the checkpoint of a policy: one of the lab's, one that `warmup.py` makes, or a folder."""
    if name in ("canonical", "noncanonical"):
        return POLICIES / name
    made = cache() / name
    return made if made.exists() or "/" not in name else Path(name).resolve()


@dataclass(frozen=True)
class Settings:
    """Everything that determines a run."""

    arm: str = "exact"
    """Name of the arm."""
    policy: str = "noncanonical"
    """Policy to start from: canonical, noncanonical, or one made by `warmup.py`."""
    seed: int = 0
    """Seed of the training questions and of the trainer. The engine's sampling has no seed."""
    steps: int = 30
    """Number of updates, each from fresh episodes."""
    groups: int = 8
    """Questions per step."""
    samples: int = 8
    """Episodes per question."""
    learning_rate: float = 3e-4
    """Constant learning rate of AdamW."""
    temperature: float = 1.0
    """Sampling temperature, in training and evaluation."""
    operations: int = 2
    """Operations per question; an episode that gets it right has one turn more."""
    teacher: str = ""
    """Policy that scores the sampled tokens, for the arm `distill`; "": there is no teacher."""
    token_cost: float = 0.0
    """What a sampled token costs: a right answer is worth 1 minus this, times the number of tokens."""
    held_out: int = 256
    """Number of held-out questions, each answered once."""
    micro_batch: int = 64
    """Episodes per forward pass; smaller takes less memory and changes nothing else."""
    part: str = "main"
    """Part of the report that the run belongs to: main, control, or the name of a sweep."""

    def __post_init__(self) -> None:
        if self.arm not in ARMS:
            raise ValueError(f"arm must be one of {', '.join(ARMS)}, got {self.arm!r}")
        if self.arm_fields.distilled != bool(self.teacher):
            raise ValueError(f"teacher must be given for the arm distill and no other, got {self.teacher!r}")
        if self.teacher and self.temperature != 1.0:
            raise ValueError(f"temperature must be 1 with a teacher, which scores at 1, got {self.temperature:g}")
        if (self.groups * self.samples) % self.micro_batch:
            raise ValueError(
                f"micro_batch must divide groups * samples = {self.groups * self.samples}, got {self.micro_batch}"
            )

    @property
    def arm_fields(self) -> Arm:
        """The arm itself."""
        return ARMS[self.arm]

    @property
    def name(self) -> str:
        """Name of the run: what it is, and a digest of all settings except the part of the report."""
        values = {name: value for name, value in asdict(self).items() if name not in ("part", "micro_batch")}
        for later in ("teacher", "token_cost"):  # so that a setting that is not used changes no name
            if not values[later]:
                del values[later]
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.policy.replace('/', '_')}-{self.arm}-s{self.seed}-{digest}"

    @property
    def start_key(self) -> str:
        """Name of the evaluation before training, which is the same for all runs with this sampling and policy."""
        policy = self.policy.replace("/", "_")
        return f"start-{policy}-t{self.temperature:g}-p{self.arm_fields.top_p:g}-o{self.operations}-{self.held_out}"

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Settings:
        """Return the settings in a results file; unknown names are ignored."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})
