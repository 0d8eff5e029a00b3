"""slime: a generate function from an agent. `slime_rollout`; serves slime's fork Miles unchanged.

    generate = slime_rollout(build_agent, reward=score)      # --custom-generate-function-path my.module.generate

Invariant: whatever becomes of an episode, slime gets whole samples and never an exception; only arguments that cannot
work are refused, at the first sample. Once slime wants to stop, no request and no tool begins.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from strands_sglang.engine import TokenEngine
from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.carried import Carried
from strands_sglang.rollout.bounds import Limits
from strands_sglang.rollout.drive import failure_of
from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.job import Job
from strands_sglang.rollout.task import Task
from strands_sglang.tokens import TokenTree
from strands_sglang.trainers.loop_worker import tell
from strands_sglang.trainers.row import Branches
from strands_sglang.trainers.slime_fan import Fan, first_of
from strands_sglang.trainers.slime_groups import (
    check_reward_nonzero_std,
    check_reward_nonzero_std_with_fallback,
    grpo_by_group,
)
from strands_sglang.trainers.slime_half import with_half
from strands_sglang.trainers.slime_halt import AbortFlag
from strands_sglang.trainers.slime_host import SlimeHost
from strands_sglang.trainers.slime_job import RECORD_KEY, SlimeJobs, check_args
from strands_sglang.trainers.slime_sample import METADATA_KEY, samples_of
from strands_sglang.trainers.slime_valid import InvalidSampleError, validate_batch, validate_sample

__all__ = [
    "slime_rollout",
    "grpo_by_group",
    "check_reward_nonzero_std",
    "check_reward_nonzero_std_with_fallback",
    "validate_sample",
    "validate_batch",
    "InvalidSampleError",
]

logger = logging.getLogger(__name__)


class Generate(Protocol):
    """What slime calls for every sample; it looks at the names of the parameters."""

    def __call__(self, args: Any, sample: Any, sampling_params: Any, evaluation: bool = False) -> Awaitable[Any]:
        """Run the episode of a sample."""
        ...


def slime_rollout(
    build: Callable[..., Any],
    *,
    reward: Callable[..., Any] | None = None,
    branches: Branches | str = Branches.MAIN,
    limits: Limits | None = None,
    task: Callable[[Any], Any] | None = None,
    mask_off_policy: bool | None = None,
    directory: str | Path | None = None,
    workers: int = 0,
    rerun_tools: Iterable[str] = (),
    reward_seconds: float | None = None,
    tokenizer: Any = None,
    client: TokenEngine | None = None,
    preflight: bool = True,
    **model_options: Any,
) -> Generate:
    """Make the function that slime calls for every sample.

    Args:
        build: Makes the agent of an episode: `build(task, model)`, as for `rollout`.
        reward: Scores an episode: `reward(episode)`, as for `rollout`; None: slime's own reward model does.
        branches: Which branches of an episode become samples. "main": one sample an episode, with slime's flags as
            usual. "all": a list, with `grpo_by_group` as --custom-reward-post-process-path.
        limits: How far an episode may go; slime's own lengths hold in any case, over all turns together.
        task: Makes a `Task` of a sample; None: the last user message of its prompt is the question, its label the
            answer, its metadata the data.
        mask_off_policy: Whether tokens sampled before an episode was set aside are kept out of the loss; None: as
            --mask-offpolicy-in-partial-rollout says.
        directory: Where ledgers are written, one folder for each start of slime; None: nowhere.
        workers: Processes, by Ray, that run the episodes instead of slime's own; 0: none.
        rerun_tools: Tools that are run again when an episode goes on, because they keep a state of their own.
        reward_seconds: Seconds that scoring may take; None: no bound.
        tokenizer: The model's; None: that of slime's --hf-checkpoint.
        client: Where tokens come from; None: slime's router.
        preflight: Whether slime's engines are looked over before the first sample, for 5 seconds at most.
        **model_options: Further arguments of `SGLangModel`. Sampling parameters are slime's.

    Returns:
        `generate(args, sample, sampling_params, evaluation=False)`.

    Raises:
        ConfigurationError: Something given cannot work.
    """
    chosen = _chosen(branches)
    if {"sampling_params", "params"} & set(model_options):
        raise ConfigurationError("sampling parameters are slime's: --rollout-temperature, --rollout-max-response-len")
    jobs = SlimeJobs(limits or Limits(), task)
    host = SlimeHost(
        build,
        reward,
        limits or Limits(),
        directory,
        workers,
        rerun_tools,
        reward_seconds,
        tokenizer,
        client,
        model_options,
        preflight,
    )

    async def generate(args: Any, sample: Any, sampling_params: Any, evaluation: bool = False) -> Any:
        """Run the episode of a sample, or go on with it."""
        check_args(args, chosen, evaluation=evaluation)
        given, flag = first_of(sample), AbortFlag(args)
        job, episode = None, None
        try:
            job = jobs.job(args, given, sampling_params, evaluation=evaluation)
            episode = await host.run(args, job, flag)
            tell(episode)
            _check_experts(args, episode, evaluation)
            asked = getattr(args, "mask_offpolicy_in_partial_rollout", False)
            samples = samples_of(
                given,
                with_half(episode),
                branches=Branches.MAIN if evaluation else chosen,
                decode=host.decode,
                response_limit=None if job.limits is None else job.limits.response,
                off_policy=episode.earlier if (asked if mask_off_policy is None else mask_off_policy) else None,
                reward_key=_reward_key(args, evaluation),
                **_experts(args, episode, evaluation),
            )
        except Exception as error:
            if isinstance(error, ConfigurationError) and not host.worked:
                raise  # at the first sample: it will be so with all of them
            logger.exception("sample=<%s> | could not be run", given.index)
            broken = _broken(job or Job(Task("", id="none"), 0), error)
            shown = {"reward_key": _reward_key(args, evaluation), **_experts(args, broken, evaluation)}
            samples = samples_of(given, broken, decode=lambda ids: "", **shown)
        host.worked = True
        if episode is not None and episode.record is not None:
            samples[0].metadata[METADATA_KEY][RECORD_KEY] = Carried(episode.record)
        return samples[0] if evaluation or chosen is Branches.MAIN else Fan(samples)

    return generate


def _chosen(branches: Branches | str) -> Branches:
    try:
        return Branches(branches)
    except ValueError:
        raise ConfigurationError(f"branches is 'main' or 'all', not {branches!r}") from None


def _reward_key(args: Any, evaluation: bool) -> str | None:
    key = getattr(args, "reward_key", None)
    return (getattr(args, "eval_reward_key", None) or key) if evaluation else key


def _experts(args: Any, episode: Episode, evaluation: bool) -> dict[str, Any]:
    if evaluation or not getattr(args, "use_rollout_routing_replay", False):
        return {}
    shape = (int(args.num_layers), int(args.moe_router_topk))
    return {"experts": lambda leaf: episode.routed_experts.get(leaf.id), "expert_shape": shape}


def _check_experts(args: Any, episode: Episode, evaluation: bool) -> None:
    """Say loudly, once, that the engine does not tell what it was asked for: no sample could be trained."""
    if _experts(args, episode, evaluation) and episode.tree and not episode.routed_experts and "experts" not in _said:
        _said.add("experts")
        logger.error(
            "episode=<%s> | the engine returned no routed experts: without them no sample is trained. start it with "
            "--enable-return-routed-experts, and mind that sglang-router 0.3.2 drops the wish for them",
            episode.id,
        )


_said: set[str] = set()


def _broken(job: Job, error: Exception) -> Episode:
    """Return the episode of a sample that could not be run at all."""
    return Episode(job.id, job.task, job.sample, Ended.AGENT, TokenTree(job.id), failure=failure_of(error))
