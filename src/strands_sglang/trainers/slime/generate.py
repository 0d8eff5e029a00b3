"""The function that slime calls for every sample, made from an agent: `slime_rollout`; `miles_rollout` for its fork.

    generate = slime_rollout(build_agent, reward=score)      # --custom-generate-function-path my.module.generate

Miles passes a `GenerateFnInput` (sample, sampling parameters, arguments, rollout state with the abort flag) to a
function whose first parameter is named `input`, and reads `samples` of the result. A function of slime's form runs in
Miles too, but could not see an abort; `slime_rollout` refuses Miles' samples for that reason. Miles is never imported,
and nothing is read but the documented fields of its input; an input without them is refused with their names.

Invariant: slime gets complete samples and never an exception, however an episode ends. Only arguments that cannot work
raise, at the first sample. Once slime has set its abort flag, no request and no tool call begins.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from strands_sglang.engine import ScoringEngine, TokenEngine
from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.record import PortableRecord
from strands_sglang.runs.agent_runner import failure_of
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.staleness import MaxStaleness
from strands_sglang.runs.task import Task
from strands_sglang.runs.workers.spec import EpisodeSpec
from strands_sglang.tokens import TokenTree
from strands_sglang.trainers.rows import Branches
from strands_sglang.trainers.slime.host import AbortFlag, SlimeHost
from strands_sglang.trainers.slime.kept_sets import KeptSetsForm, warn_if_lost
from strands_sglang.trainers.slime.samples import (
    METADATA_KEY,
    RECORD_KEY,
    SampleGroup,
    SessionField,
    SlimeSpecs,
    check_args,
    samples_of,
    with_partial_turn,
)
from strands_sglang.trainers.worker_pool import EpisodeTeacher, log_failure

logger = logging.getLogger(__name__)


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
    reward_timeout: float | None = None,
    models: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    client: TokenEngine | None = None,
    preflight: bool = True,
    teacher: ScoringEngine | str | None = None,
    max_staleness: MaxStaleness | int | None = None,
    **model_options: Any,
) -> Callable[..., Awaitable[Any]]:
    """Make the function that slime calls for every sample.

    Args:
        build: Makes the agent of an episode: `build(task, model)`, as for `rollout`.
        reward: Scores an episode: `reward(episode)`, as for `rollout`. None leaves scoring to slime's reward model.
        branches: Which branches of an episode become samples. "main": one sample per episode; slime's flags work as
            usual. "all": a list of samples, which needs `grpo_by_group` as --custom-reward-post-process-path.
        limits: Limits of an episode, in addition to slime's own lengths, which apply to all turns together.
        task: Makes a `Task` from a sample. None: the last user message of its prompt is the question, its label the
            answer, its metadata the data.
        mask_off_policy: Whether tokens sampled before an episode was paused are kept out of the loss. None: as
            in --mask-offpolicy-in-partial-rollout.
        directory: Where ledgers are written, one folder per start of slime. None writes none.
        workers: Number of Ray worker processes that run the episodes; 0 runs them in slime's own process.
        rerun_tools: Names of tools that run again when an episode continues, because they keep state between calls.
        reward_timeout: Time limit for scoring an episode, in seconds; None means no limit.
        models: Other models of an episode, such as a simulated user, as for `rollout`.
        tokenizer: The model's tokenizer. None: the one of slime's --hf-checkpoint.
        client: The engine. None: slime's router.
        preflight: Whether to check slime's engines before the first sample, for at most 5 seconds.
        teacher: Engine of a teacher, or its base URL: its logprobs of the response become `teacher_log_probs`. A sample
            that it could not score is kept out of the loss. None: no teacher.
        max_staleness: The number of weight updates after which a token is too old to be trained, or a `MaxStaleness`.
            It is decided for each sample, when its episode has ended. None: tokens of any age are trained.
        **model_options: Further arguments of `SGLangModel`. Sampling parameters come from slime.

    Example:
        >>> generate = slime_rollout(build_agent, reward=score, limits=Limits(max_turns=10))
    """
    runner = SampleRunner(
        build,
        reward=reward,
        branches=branches,
        limits=limits,
        task=task,
        mask_off_policy=mask_off_policy,
        directory=directory,
        workers=workers,
        rerun_tools=rerun_tools,
        reward_timeout=reward_timeout,
        models=models,
        tokenizer=tokenizer,
        client=client,
        preflight=preflight,
        teacher=teacher,
        max_staleness=max_staleness,
        **model_options,
    )

    # slime inspects the names of its parameters.
    async def generate(args: Any, sample: Any, sampling_params: Any, evaluation: bool = False) -> Any:
        return await runner.run(args, sample, sampling_params, AbortFlag.of_slime(args), evaluation=evaluation)

    return generate


class SampleRunner:
    """Runs the episodes of samples for slime and Miles. The arguments are those of `slime_rollout`."""

    def __init__(
        self,
        build: Callable[..., Any],
        *,
        branches: Branches | str = Branches.MAIN,
        limits: Limits | None = None,
        task: Callable[[Any], Any] | None = None,
        mask_off_policy: bool | None = None,
        teacher: ScoringEngine | str | None = None,
        session_field: SessionField = SessionField.SLIME,
        **options: Any,
    ) -> None:
        """Check the arguments; nothing is started before the first sample.

        `session_field` is the field of a sample that holds its routing key. `options` are those of `SlimeHost`, and
        further arguments of `SGLangModel`.
        """
        try:
            self._branches = Branches(branches)
        except ValueError:
            raise ConfigurationError(f"branches must be 'main' or 'all', got {branches!r}") from None
        if {"sampling_params", "params"} & set(options):
            raise ConfigurationError(
                "sampling parameters must not be given, slime sets them: use --rollout-temperature, "
                "--rollout-max-response-len"
            )
        self._mask_off_policy = mask_off_policy
        self._teacher = None if teacher is None else EpisodeTeacher(teacher)
        self._specs = SlimeSpecs(limits or Limits(), task, session_field)
        self._host = SlimeHost(build, limits or Limits(), **options)

    async def run(self, args: Any, sample: Any, sampling_params: Any, flag: AbortFlag, *, evaluation: bool) -> Any:
        """Run the episode of a sample, or continue it.

        `sample` may be the list that an earlier call returned for it. An evaluation always gets one sample.
        """
        check_args(args, self._branches, evaluation=evaluation)
        given = sample[0] if isinstance(sample, list) else sample
        host, spec, episode = self._host, None, None
        reward_key, expert_shape = _reward_key(args, evaluation), _expert_shape(args, evaluation)
        form = KeptSetsForm.NONE if evaluation else KeptSetsForm.of(args, given)
        if not evaluation:
            warn_if_lost(form, sampling_params)
            host.needs_kept_sets = bool(form)
        try:
            spec = self._specs.spec(args, given, sampling_params, evaluation=evaluation)
            episode = await host.run(args, spec, flag, evaluation=evaluation)
            log_failure(episode)
            teacher = None if evaluation else self._teacher
            if teacher is not None:
                await teacher.score(episode)
            if expert_shape is not None:
                _check_experts(episode)
            masked = self._mask_off_policy
            if masked is None:
                masked = getattr(args, "mask_offpolicy_in_partial_rollout", False)
            fill = partial(
                samples_of,
                given,
                with_partial_turn(episode),
                branches=Branches.MAIN if evaluation else self._branches,
                decode=host.decode,
                response_limit=None if spec.limits is None else spec.limits.max_response_tokens,
                off_policy=episode.earlier if masked else None,
                expert_shape=expert_shape,
                reward_key=reward_key,
                images=None if evaluation else host.image_features(args),
                kept_sets=form,
                needs_teacher=teacher is not None,
            )
            # Images are decoded and resized, which takes long.
            samples = await asyncio.to_thread(fill) if episode.tree.has_images else fill()
        except Exception as error:
            if isinstance(error, ConfigurationError) and not host.has_run:
                raise  # at the first sample: all others would fail in the same way
            logger.exception("sample=<%s> | sample could not be run", given.index)
            failed = _failed_episode(spec or EpisodeSpec(Task("", id="none"), 0), error)
            options: dict[str, Any] = {"expert_shape": expert_shape, "reward_key": reward_key, "kept_sets": form}
            samples = samples_of(given, failed, decode=lambda ids: "", **options)
        host.has_run = True
        if episode is not None and episode.record is not None:
            samples[0].metadata[METADATA_KEY][RECORD_KEY] = PortableRecord(episode.record)
        return samples[0] if evaluation or self._branches is Branches.MAIN else SampleGroup(samples)


def _reward_key(args: Any, evaluation: bool) -> str | None:
    key = getattr(args, "reward_key", None)
    return (getattr(args, "eval_reward_key", None) or key) if evaluation else key


def _expert_shape(args: Any, evaluation: bool) -> tuple[int, int] | None:
    """Return layers and experts per layer; None if samples need no routed experts."""
    if evaluation or not getattr(args, "use_rollout_routing_replay", False):
        return None
    return int(args.num_layers), int(args.moe_router_topk)


def _check_experts(episode: Episode) -> None:
    """Log an error, once per process, if the engine does not return routed experts: no sample could be trained."""
    if episode.tree and not episode.routed_experts and "experts" not in _logged:
        _logged.add("experts")
        logger.error(
            "episode=<%s> | engine returned no routed experts, so no sample is trained: start it with "
            "--enable-return-routed-experts (logged once)",
            episode.id,
        )


_logged: set[str] = set()


def _failed_episode(spec: EpisodeSpec, error: Exception) -> Episode:
    return Episode(
        spec.id, spec.task, spec.sample, EndReason.AGENT_ERROR, TokenTree(spec.id), failure=failure_of(error)
    )


_TYPES_MODULE = "miles.rollout.base_types"
_INPUT_FIELDS = ("args", "sample", "sampling_params", "state")


def miles_rollout(build: Callable[..., Any], **options: Any) -> Callable[[Any], Awaitable[Any]]:
    """Make the function that Miles calls for every sample; the arguments are those of `slime_rollout`.

    Example:
        >>> generate = miles_rollout(build_agent, reward=score, limits=Limits(max_turns=10))
    """
    runner = SampleRunner(build, session_field=SessionField.MILES, **options)

    # Miles inspects the name of its parameter.
    async def generate(input: Any) -> Any:
        _check_input(input)
        samples = await runner.run(
            input.args,
            input.sample,
            input.sampling_params,
            AbortFlag(input.state),
            evaluation=bool(getattr(input, "evaluation", False)),
        )
        # Miles has loaded the module when it calls this function; nothing of Miles is imported here.
        kind = getattr(sys.modules.get(_TYPES_MODULE), "GenerateFnOutput", SimpleNamespace)
        return kind(samples=samples)

    return generate


def _check_input(given: Any) -> None:
    missing = [name for name in _INPUT_FIELDS if not hasattr(given, name)]
    if not missing and not hasattr(given.state, "aborted"):
        missing = ["state.aborted"]
    if missing:
        raise ConfigurationError(
            f"input must be Miles' GenerateFnInput with {', '.join(_INPUT_FIELDS)} and state.aborted, got a "
            f"{type(given).__name__} without {', '.join(missing)}: this version of Miles is not supported; in slime, "
            "use slime_rollout"
        )
