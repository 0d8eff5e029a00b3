"""The budget of a turn: how many tokens it may sample.

Invariant: a turn always has a budget, and never more than the episode and the context have left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strands.types.exceptions import ContextWindowOverflowException

from strands_sglang.errors import TokenBudgetError

DEFAULT_MAX_NEW_TOKENS = 4096
"""What a turn may sample when nothing is said. The engine's own default, 128, cuts most turns in half."""


def tokens_left(used: int, episode_limit: int) -> int:
    """Return how many tokens an episode may yet sample, above 0.

    Raises:
        TokenBudgetError: None.
    """
    if used >= episode_limit:
        raise TokenBudgetError(
            f"the episode has sampled {used} of {episode_limit} tokens (max_episode_tokens)",
            used=used,
            budget=episode_limit,
        )
    return episode_limit - used


def turn_budget(
    sampling: Mapping[str, Any],
    *,
    prompt_tokens: int,
    context_limit: int | None,
    used: int,
    episode_limit: int | None,
    response: int = 0,
    response_limit: int | None = None,
) -> int:
    """Return how many tokens a turn may sample.

    Args:
        sampling: The sampling parameters; their `max_new_tokens` counts.
        prompt_tokens: Tokens of the turn's prompt.
        context_limit: Tokens of prompt and turn together; None when not known.
        used: Tokens the episode has sampled.
        episode_limit: Tokens the episode may sample; None: no limit.
        response: Tokens of the turn's prompt behind the first prompt of its branch.
        response_limit: Tokens that a branch may have behind its first prompt; None: no limit.

    Raises:
        ContextWindowOverflowException: The prompt leaves no room.
        TokenBudgetError: The episode, or the response, has none left.
    """
    budget: int = sampling.get("max_new_tokens") or DEFAULT_MAX_NEW_TOKENS
    if episode_limit is not None:
        budget = min(budget, tokens_left(used, episode_limit))
    if response_limit is not None:
        if response >= response_limit:
            raise TokenBudgetError(
                f"the response has {response} tokens, tool results included, of {response_limit} (max_response_tokens)",
                used=response,
                budget=response_limit,
            )
        budget = min(budget, response_limit - response)
    if context_limit is not None:
        if prompt_tokens >= context_limit:
            raise ContextWindowOverflowException(
                f"the prompt has {prompt_tokens} tokens and the context {context_limit}: nothing can be sampled"
            )
        budget = min(budget, context_limit - prompt_tokens)
    return budget
