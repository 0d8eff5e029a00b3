"""An engine without a server: a model of `transformers` in this process, as a `TokenEngine`.

It samples from the model's own logits in float32 and returns the logprob of every token it sampled. Turns of episodes
that run at the same time share the model, one forward pass at a time. It keeps no prefix cache: every turn computes its
whole prompt, so it is made for small models and short episodes.
"""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from strands_sglang.engine import BaseEngine, Capability, Generation, Prefill
from strands_sglang.engine.base import finished, sampled, spans_of
from strands_sglang.errors import ConfigurationError

KNOWN = {"max_new_tokens", "temperature", "stop_token_ids"}


class TransformersEngine(BaseEngine):
    """Samples with a causal language model.

    Example:
        >>> engine = TransformersEngine("lab/tool_policy/canonical", seed=1)
        >>> rollout_sync(build, tasks, client=engine, tokenizer="lab/tool_policy/canonical")
    """

    owner = "transformers"
    capabilities = frozenset({Capability.SCORING})

    def __init__(self, path: str, *, version: str = "0", seed: int | None = None) -> None:
        """Load the model.

        Args:
            path: Folder or hub name of the weights.
            version: Name of the weights, which every sampled token is recorded with.
            seed: Seed of the random numbers; None draws one. Episodes that run at once take turns in any order.
        """
        super().__init__()
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        ends = self._model.generation_config.eos_token_id
        self._ends = set(ends if isinstance(ends, list) else [ends])
        self._version = version
        self._random = torch.Generator()
        self._random.manual_seed(seed) if seed is not None else self._random.seed()
        self._lock = threading.Lock()

    async def request(self, input_ids, sampling, key, experts_start) -> Generation:
        """Sample one turn; the event loop stays free for the tools of other episodes."""
        if unknown := set(sampling) - KNOWN:
            raise ConfigurationError(f"sampling_params must be some of {sorted(KNOWN)}, got {sorted(unknown)}")
        cancelled = threading.Event()
        try:
            ids, logprobs, reason = await asyncio.to_thread(self._sample, input_ids, sampling, cancelled)
        finally:
            cancelled.set()  # a thread cannot be cancelled: it looks at this before every token
        ends = finished(reason, ids, sampling["max_new_tokens"])
        versions = spans_of([self._version] * len(ids))
        return sampled(self.owner, ids, logprobs, versions, ends, prompt_tokens=len(input_ids), rid=key)

    async def score(self, input_ids, start, *, images=(), top=0) -> Prefill:
        """Return the logprobs of `input_ids[start:]`, at temperature 1."""
        if images:
            raise ConfigurationError("images cannot be scored: this engine has a model of text")
        return await asyncio.to_thread(self._score, list(input_ids), start, top)

    def _sample(self, prompt, sampling, cancelled):
        """Return the sampled ids, their logprobs, and why sampling ended."""
        temperature = sampling.get("temperature", 1.0)
        ends = self._ends | set(sampling.get("stop_token_ids") or ())
        ids, logprobs, cache, fresh = [], [], None, list(prompt)
        while len(ids) < sampling["max_new_tokens"]:
            if cancelled.is_set():
                return ids, logprobs, "abort"
            with self._lock, torch.inference_mode():
                output = self._model(torch.tensor([fresh]), past_key_values=cache, use_cache=True)
                chances = torch.log_softmax(output.logits[0, -1] / (temperature or 1.0), -1)
                if temperature == 0:
                    token = int(chances.argmax())
                else:
                    token = int(torch.multinomial(chances.exp(), 1, generator=self._random))
            ids.append(token)
            logprobs.append(float(chances[token]))
            if token in ends:
                return ids, logprobs, "stop"
            cache, fresh = output.past_key_values, [token]
        return ids, logprobs, "length"

    def _score(self, ids, start, top):
        with self._lock, torch.inference_mode():
            chances = torch.log_softmax(self._model(torch.tensor([ids])).logits[0, start - 1 : -1], -1)
        own = chances.gather(-1, torch.tensor(ids[start:])[:, None])[:, 0]
        best = chances.topk(top, -1)
        numbers = (best.indices.numpy().astype(np.int32), best.values.double().numpy())
        return Prefill(own.double().numpy(), *numbers)
