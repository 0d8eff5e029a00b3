r"""The math agent of `examples/slime_math` with an arm of the experiment between its episodes and slime.

    --custom-generate-function-path arm_agent.generate

The environment variable `RETOKENIZATION_ARM` names the arm; `run.sh ARM` sets it. An episode is run as always. Then its
sample is rewritten: other tokens, their mask, and the engine's logprobs by position. What the trainer does with the
logprobs is a flag of slime, see `flags.py`.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[2] / "examples" / "slime_math")]

import math_agent  # noqa: E402
from arms import ARMS, REWARDED, Arm, Tokens  # noqa: E402
from retokenize import Sample, Sampled, canonical_mask, decoded, rendered  # noqa: E402

from strands_sglang import Episode  # noqa: E402
from strands_sglang.chat.messages import template_tools  # noqa: E402
from strands_sglang.chat.tokenization import load_tokenizer  # noqa: E402
from strands_sglang.trainers.slime import slime_rollout  # noqa: E402

METADATA = "strands_sglang"
"""Key of what `slime_rollout` says of an episode, in the metadata of a sample."""

_messages: dict[str, list[dict[str, Any]]] = {}
"""Messages of episodes that are scored and not yet rewritten, by their ids."""


def arm() -> Arm:
    """Return the arm that the environment names."""
    name = os.environ.get("RETOKENIZATION_ARM", "exact")
    if name not in REWARDED:
        raise ValueError(f"RETOKENIZATION_ARM must be one of {', '.join(REWARDED)}, got {name!r}")
    return ARMS[name]


@cache
def tokenizer_of(checkpoint: str) -> Any:
    """Return the tokenizer of a checkpoint."""
    return load_tokenizer(checkpoint)


def score(episode: Episode) -> dict[str, float]:
    """Score an episode as the math agent does, and keep its messages, which a sample does not have."""
    if arm().tokens is Tokens.RENDERED:
        _messages[episode.id] = episode.messages
    return math_agent.score(episode)


run_episode = slime_rollout(math_agent.build_agent, reward=score, limits=math_agent.LIMITS, enable_thinking=True)


async def generate(args: Any, sample: Any, sampling_params: Any, evaluation: bool = False) -> Any:
    """Run the episode of a sample, and apply the arm to it unless this is an evaluation."""
    chosen = arm()
    if chosen.top_p < 1 and not chosen.kept and not evaluation:
        # slime is not told, so it scores over the whole vocabulary; with kept sets, --rollout-top-p does both.
        sampling_params = {**sampling_params, "top_p": chosen.top_p}
    made = await run_episode(args, sample, sampling_params, evaluation)
    messages = _messages.pop(made.metadata[METADATA]["episode"], None)
    if evaluation or made.remove_sample or chosen.tokens is Tokens.EXACT or not any(made.loss_mask):
        return made
    return rewrite(made, chosen, tokenizer_of(args.hf_checkpoint), messages)


def rewrite(sample: Any, chosen: Arm, tokenizer: Any, messages: list[dict[str, Any]] | None) -> Any:
    """Replace the tokens of a sample by those of the arm.

    Args:
        sample: A sample of slime with exact tokens; it is changed.
        chosen: The arm.
        tokenizer: The model's tokenizer.
        messages: The conversation; None: it is unknown, and the sample is left as it is (the episode was paused and
            scored in another process).
    """
    prompt = len(sample.tokens) - sample.response_length
    given = Sampled.of_mask(
        sample.tokens[:prompt], sample.tokens[prompt:], list(sample.loss_mask), list(sample.rollout_log_probs)
    )
    if chosen.tokens is Tokens.CANONICAL:
        sample.loss_mask = canonical_mask(given, sample.loss_mask, tokenizer)
        return sample
    if chosen.tokens is Tokens.DECODED:
        new = decoded(given, tokenizer)
    elif messages is not None:
        options = {"tools": template_tools([math_agent.python_tool().tool_spec]), "enable_thinking": True}
        new = rendered(given, tokenizer, messages, system=math_agent.SYSTEM_PROMPT, options=options)
    else:
        return sample
    return write(sample, new, tokenizer)


def write(sample: Any, new: Sample, tokenizer: Any) -> Any:
    """Write tokens, mask and logprobs into a sample of slime."""
    sample.tokens = [*new.prompt_ids, *new.completion_ids]
    sample.response_length = len(new.completion_ids)
    sample.response = tokenizer.decode(new.completion_ids, skip_special_tokens=False)
    sample.loss_mask, sample.rollout_log_probs = list(new.mask), list(new.logprobs)
    sample.metadata[METADATA]["parts"]["changed_turns"] = new.changed / max(1, new.turns)
    return sample
