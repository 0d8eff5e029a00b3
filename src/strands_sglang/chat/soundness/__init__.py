"""Soundness: for which steps the bridge of a chat template is proved to be exact."""

from strands_sglang.chat.soundness.report import (
    UNPROBED,
    FailureReason,
    Soundness,
    StepResult,
)
from strands_sglang.chat.soundness.runtime import (
    RuntimeSoundness,
    StandIn,
    runtime_soundness,
    sound_bridge,
    soundness,
)

__all__ = [
    "UNPROBED",
    "FailureReason",
    "RuntimeSoundness",
    "Soundness",
    "StandIn",
    "StepResult",
    "runtime_soundness",
    "sound_bridge",
    "soundness",
]
