"""A trajectory in the form of the published package: `Rollout`, one flat record that can be stored and serialised.

Invariant: a rollout equals the latest branch of its episode. It is updated with every turn until the episode is reset;
after that it does not change.
"""

from __future__ import annotations

import base64
import weakref

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field

from strands_sglang.engine.request import image_url
from strands_sglang.provider.episode import EpisodeTokens
from strands_sglang.provider.reply_tracking import reply_listeners
from strands_sglang.tokens import Origin


class Rollout(BaseModel):
    """Tokens of one conversation with the model, prompt and output in order.

    Example:
        await agent.invoke_async("What is 12 * 7?")
        rollout = model.rollout
        print(rollout.token_ids, rollout.loss_mask, rollout.logprobs)
    """

    token_ids: list[int] = Field(default_factory=list, description="Token ids of all segments.")
    loss_mask: list[int] = Field(
        default_factory=list, description="1 for sampled tokens that are trained, else 0; one per token."
    )
    logprobs: list[float | None] = Field(
        default_factory=list, description="Logprob of each token; None for tokens that were not sampled."
    )
    routed_experts: list[str] = Field(
        default_factory=list, description="Expert choices in base64, in the order of the tokens."
    )
    image_data: list[str] = Field(default_factory=list, description="Images of the conversation, as data URLs.")
    segment_info: list[tuple[bool, int]] = Field(
        default_factory=list, description="For each segment, whether it was sampled and its number of tokens."
    )

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        return f"Rollout(tokens={len(self)}, trained={sum(self.loss_mask)}, segments={len(self.segment_info)})"

    @property
    def initial_prompt_length(self) -> int:
        """Number of tokens of the first prompt: system prompt, tools and first message."""
        return self.segment_info[0][1] if self.segment_info and not self.segment_info[0][0] else 0

    def add_prompt(self, token_ids: list[int], logprobs: list[float | None] | None = None) -> None:
        """Append a segment that was not sampled."""
        self._add(token_ids, logprobs, sampled=False)

    def add_response(self, token_ids: list[int], logprobs: list[float | None] | None = None) -> None:
        """Append a segment that was sampled."""
        self._add(token_ids, logprobs, sampled=True)

    def add_routed_experts(self, routed_experts: str) -> None:
        """Append expert choices in SGLang's form: base64 of int32."""
        self.routed_experts.append(routed_experts)

    def decode_routed_experts(self, num_layers: int, top_k: int) -> npt.NDArray[np.int32]:
        """Return the expert choices as int32 of shape (tokens, num_layers, top_k)."""
        data = b"".join(base64.b64decode(part) for part in self.routed_experts)
        return np.frombuffer(data, dtype="<i4").astype(np.int32).reshape(-1, num_layers, top_k)

    def _add(self, token_ids: list[int], logprobs: list[float | None] | None, *, sampled: bool) -> None:
        if logprobs is not None and len(logprobs) != len(token_ids):
            raise ValueError(f"logprobs must have one item per token ({len(token_ids)}), got {len(logprobs)}")
        if not token_ids:
            return
        self.token_ids.extend(token_ids)
        self.loss_mask.extend([int(sampled)] * len(token_ids))
        self.logprobs.extend([None] * len(token_ids) if logprobs is None else logprobs)
        self.segment_info.append((sampled, len(token_ids)))


class RolloutViews:
    """The rollouts of one model's episodes; each is created when it is first requested."""

    def __init__(self) -> None:
        self._rollouts: weakref.WeakKeyDictionary[EpisodeTokens, Rollout] = weakref.WeakKeyDictionary()
        self._requested = False

    def get(self, episode: EpisodeTokens) -> Rollout:
        """Return an episode's rollout: the same object until the episode is reset."""
        self._requested = True
        rollout = self._rollouts.setdefault(episode, Rollout())
        _update(rollout, episode)
        views_ref, episode_ref = weakref.ref(self), weakref.ref(episode)

        def refresh() -> None:
            views, current = views_ref(), episode_ref()
            if views is not None and current is not None:
                views.refresh(current)

        reply_listeners[episode.tree] = refresh
        return rollout

    def refresh(self, episode: EpisodeTokens) -> None:
        """Update the rollout of an episode, if it was requested before."""
        if self._requested and episode in self._rollouts:
            _update(self._rollouts[episode], episode)

    def detach(self, episode: EpisodeTokens) -> None:
        """Update the rollout of an episode a last time; called before the episode is reset."""
        self.refresh(episode)
        self._rollouts.pop(episode, None)


def _update(rollout: Rollout, episode: EpisodeTokens) -> None:
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
    rollout.image_data = [image_url(episode.images[image.digest].png) for image in flat.images]
