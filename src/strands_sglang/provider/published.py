"""A trajectory as the published package shows it: `Rollout`, one flat record that programs keep and serialise.

Invariant: it says what the episode's latest branch says. Whoever holds one sees the turns that follow, too, until the
episode is reset; from then on it stays as it is.
"""

from __future__ import annotations

import base64
import weakref

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field

from strands_sglang.provider.episode import Episode
from strands_sglang.provider.standing import told_of_standing
from strands_sglang.tokens import Origin


class Rollout(BaseModel):
    """Tokens of one conversation with the model, prompt and output in the order in which they came."""

    token_ids: list[int] = Field(default_factory=list, description="The ids of all segments.")
    loss_mask: list[int] = Field(default_factory=list, description="1 on sampled tokens that are trained; else 0.")
    logprobs: list[float | None] = Field(
        default_factory=list, description="Log-probability of each token; None where nothing was sampled."
    )
    routed_experts: list[str] = Field(
        default_factory=list, description="Expert choices in base64, in the order of their tokens."
    )
    image_data: list[str] = Field(default_factory=list, description="Images of the conversation, as data URLs.")
    segment_info: list[tuple[bool, int]] = Field(
        default_factory=list, description="For each segment, whether it was sampled and how many tokens it has."
    )

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        return f"Rollout(tokens={len(self)}, trained={sum(self.loss_mask)}, segments={len(self.segment_info)})"

    @property
    def initial_prompt_length(self) -> int:
        """Tokens of the first prompt: system, tools and user."""
        return self.segment_info[0][1] if self.segment_info and not self.segment_info[0][0] else 0

    def add_prompt(self, token_ids: list[int], logprobs: list[float | None] | None = None) -> None:
        """Append a segment that was not sampled.

        Raises:
            ValueError: There are not as many logprobs as tokens.
        """
        self._add(token_ids, logprobs, sampled=False)

    def add_response(self, token_ids: list[int], logprobs: list[float | None] | None = None) -> None:
        """Append a segment that was sampled.

        Raises:
            ValueError: There are not as many logprobs as tokens.
        """
        self._add(token_ids, logprobs, sampled=True)

    def add_routed_experts(self, routed_experts: str) -> None:
        """Append expert choices, as SGLang sends them: base64 of int32."""
        self.routed_experts.append(routed_experts)

    def decode_routed_experts(self, num_layers: int, top_k: int) -> npt.NDArray[np.int32]:
        """Return the expert choices as int32 of shape (tokens, num_layers, top_k).

        Raises:
            ValueError: They do not divide into that shape.
        """
        data = b"".join(base64.b64decode(part) for part in self.routed_experts)
        return np.frombuffer(data, dtype="<i4").astype(np.int32).reshape(-1, num_layers, top_k)

    def _add(self, token_ids: list[int], logprobs: list[float | None] | None, *, sampled: bool) -> None:
        if logprobs is not None and len(logprobs) != len(token_ids):
            raise ValueError(f"{len(token_ids)} tokens but {len(logprobs)} logprobs")
        if not token_ids:
            return
        self.token_ids.extend(token_ids)
        self.loss_mask.extend([int(sampled)] * len(token_ids))
        self.logprobs.extend([None] * len(token_ids) if logprobs is None else logprobs)
        self.segment_info.append((sampled, len(token_ids)))


class Rollouts:
    """The rollouts of one model's episodes, as far as anybody has asked for them."""

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[Episode, Rollout] = weakref.WeakKeyDictionary()

    def of(self, episode: Episode) -> Rollout:
        """Return an episode's rollout: the same object until the episode is reset."""
        rollout = self._of.setdefault(episode, Rollout())
        _show(rollout, episode)
        shown, held = weakref.ref(self), weakref.ref(episode)

        def refresh() -> None:
            rollouts, known = shown(), held()
            if rollouts is not None and known is not None:
                rollouts.refresh(known)

        told_of_standing[episode.tree] = refresh
        return rollout

    def refresh(self, episode: Episode) -> None:
        """Bring an episode's rollout up to date, if anybody holds it."""
        if episode in self._of:
            _show(self._of[episode], episode)

    def leave(self, episode: Episode) -> None:
        """Leave an episode's rollout as it is: the episode begins anew."""
        self.refresh(episode)
        self._of.pop(episode, None)


def _show(rollout: Rollout, episode: Episode) -> None:
    tokens = episode.token_manager
    flat = tokens.trajectory()
    rollout.token_ids = flat.token_ids.tolist()
    rollout.loss_mask = flat.loss_mask.tolist()
    sampled = (flat.origins == Origin.SAMPLED).tolist()
    rollout.logprobs = [
        logprob if real else None for logprob, real in zip(flat.logprobs.tolist(), sampled, strict=True)
    ]
    rollout.segment_info = tokens.segment_info
    rollout.routed_experts = list(episode.expert_parts(tokens.leaf))
