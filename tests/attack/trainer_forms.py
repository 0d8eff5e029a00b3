"""Random trees in every trainer's form: is each sampled token trained at most once, with its own logprob and version?

Every token of a tree is unique, and its logprob, version, kept set and teacher's logprob follow from it, so whatever is
lost, moved or doubled on the way to a trainer shows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import EndReason, Episode
from strands_sglang.runs.reward import Reward
from strands_sglang.tokens import Join, KeptSets, TeacherLogprobs, TokenTree, Turn, TurnPurpose, VersionSpan
from strands_sglang.trainers import padded_batch
from strands_sglang.trainers.rows import Branches, plain_rows, rows
from strands_sglang.trainers.slime.kept_sets import KeptSetsForm
from strands_sglang.trainers.slime.samples import samples_of
from strands_sglang.trainers.statuses import is_trainable
from strands_sglang.trainers.trl.batch import Completion, batch_of
from support.token_trees import grow
from support.trainers import areal_mirror, skyrl_mirror, verl_mirror
from support.trainers.grown_episodes import episode_of, text_of
from support.trainers.slime_mirror import Sample

Values: TypeAlias = "Sequence[Any] | npt.NDArray[Any]"
PAD = 0
_FOREIGN = 1_000_000
"""Offset of the other id in a kept set."""


@dataclass
class Form:
    """One row as a trainer gets it."""

    prompt: Values
    response: Values
    mask: Values
    logprobs: Values
    versions: Values | None = None
    """Of the response; None: the trainer gets none."""
    kept: Sequence[Values] | None = None
    teacher: Values | None = None
    over_sets: bool = False
    """Whether the logprobs are those over the kept sets."""


@dataclass
class Case:
    """One episode and what is true of its tokens."""

    rng: random.Random
    episode: Episode
    kept: bool
    versions: dict[int, str | None] = field(default_factory=dict)
    """Weight version of every sampled token."""

    @property
    def tree(self) -> TokenTree:
        return self.episode.tree

    def wanted(self, branches: Branches) -> set[int]:
        """Return the tokens that are trained if nothing is cut."""
        turns: Sequence[Turn] = self.tree.turns
        if branches is Branches.MAIN:
            main = self.tree.main_leaf()
            turns = [] if main is None else self.tree.path(main)
        kept = [turn for turn in turns if turn.purpose is TurnPurpose.EPISODE and not turn.rejected]
        return {token for turn in kept for token in turn.sampled}


def random_case(seed: int) -> Case:
    """Return a tree of forks, retries, sub-agents, side and constrained turns, truncated and empty turns."""
    rng = random.Random(seed)
    tree, unused = TokenTree(f"t{seed}"), iter(range(1, 10_000))
    fresh: Callable[[int], list[int]] = lambda count: [next(unused) for _ in range(count)]  # noqa: E731
    all_kept, scored = rng.random() < 0.4, rng.random() < 0.4
    versions: dict[int, str | None] = {}
    for _ in range(rng.randint(0, 9)):
        turns = tree.turns
        parent = rng.choice([None, *turns, *turns[-1:] * 4])
        later, sampled = parent is not None, fresh(rng.choice([0, 1, 2, 3, 6]))
        spans = _spans(len(sampled), rng)
        versions |= {token: span.version for span in spans for token in sampled[span.start : span.end]}
        kept = KeptSets.of([[token, token + _FOREIGN] for token in sampled], [-token / 20 for token in sampled])
        turn = grow(
            tree,
            parent,
            fresh(rng.choice([0, 1, 3] if later or rng.random() < 0.1 else [1, 4])),
            sampled,
            closing=fresh(rng.choice([0, 0, 1])) if later else (),
            purpose=rng.choices([*TurnPurpose], [6, 1, 1])[0],
            join=rng.choice([Join.PROVED, Join.KEPT, Join.FORKED] if later else [Join.ROOT, Join.FORKED]),
            caller=(rng.choice(turns).id, "call") if turns and not later and rng.random() < 0.4 else None,
            versions=spans,
            kept=kept if all_kept and rng.random() < 0.95 else None,
        )
        if rng.random() < 0.2:
            tree.reject(turn)
        if scored and rng.random() < 0.95:
            tree.set_teacher(turn, TeacherLogprobs.of([-token / 30 for token in sampled]))
    tree.main = rng.choice([None, -1, *(turn.id for turn in tree)])
    reward = rng.choice([Reward(None), Reward(0.0), Reward(1.0), Reward(error="it hung")])
    return Case(rng, episode_of(tree, rng.choice([*EndReason]), reward), all_kept, versions)


def _spans(count: int, rng: random.Random) -> list[VersionSpan]:
    if not count:
        return []
    cut = rng.randrange(1, count) if count > 1 and rng.random() < 0.5 else count
    spans = [VersionSpan(rng.choice(["1", "2", None]), 0, cut)]
    return spans if cut == count else [*spans, VersionSpan("3", cut, count)]


def _trajectories(case: Case, branches: Branches) -> Iterator[Form]:
    for flat in case.tree.trajectories():
        flat.validate()
        names = (*flat.version_names, None)
        yield Form(
            (), flat.token_ids, flat.loss_mask, flat.logprobs, [names[number] for number in flat.versions],
            None if flat.kept is None else [flat.kept.at(at) for at in range(len(flat))],
            None if flat.teacher is None else flat.teacher.logprobs,
        )  # fmt: skip


def _rows(case: Case, branches: Branches) -> Iterator[Form]:
    for row in rows(case.episode, branches):
        names = (*row.version_names, None)
        yield Form(
            row.prompt_ids, row.response_ids, row.loss_mask, row.logprobs, [names[number] for number in row.versions],
            None if row.kept is None else [row.kept.at(at) for at in range(len(row.response_ids))],
            None if row.teacher is None else row.teacher.logprobs,
        )  # fmt: skip


def _slime(case: Case, branches: Branches) -> Iterator[Form]:
    form = case.rng.choice([KeptSetsForm.NONE, KeptSetsForm.SLIME]) if case.kept else KeptSetsForm.NONE
    made = samples_of(
        Sample(index=1), case.episode, branches=branches, decode=text_of, kept_sets=form,
        response_limit=case.rng.choice([None, None, 1, 4]),
        off_policy={turn.id: case.rng.randrange(3) for turn in case.tree if case.rng.random() < 0.2},
        needs_teacher=case.rng.random() < 0.3,
    )  # fmt: skip
    for one in made:
        first, ids, offsets = len(one.tokens) - one.response_length, one.rollout_top_p_token_ids, None
        assert 0 < first < len(one.tokens) and one.loss_mask is not None and one.rollout_log_probs is not None
        if form is KeptSetsForm.SLIME:
            offsets = one.rollout_top_p_token_offsets
            assert len(offsets) == one.response_length + 1
        assert not one.remove_sample or not any(one.loss_mask)
        yield Form(
            one.tokens[:first], one.tokens[first:], one.loss_mask, one.rollout_log_probs,
            kept=None if offsets is None else [ids[a:b] for a, b in pairwise(offsets)],
            teacher=one.teacher_log_probs, over_sets=form is KeptSetsForm.SLIME,
        )  # fmt: skip


def _plain(case: Case, branches: Branches, scored: bool = True) -> list[Any]:
    return plain_rows(case.episode, pad_id=PAD, scored=scored, branches=branches)


def _areal(case: Case, branches: Branches) -> Iterator[Form]:
    for row in _plain(case, branches):
        tensors = {name: tensor.array[0] for name, tensor in areal_mirror.adapter.trajectory(row).items()}
        versions = [None if number < 0 else str(number) for number in tensors["versions"]]
        yield Form((), tensors["input_ids"], tensors["loss_mask"], tensors["logprobs"], versions)


def _verl(case: Case, branches: Branches) -> Iterator[Form]:
    lengths = {"prompt_length": case.rng.choice([1, 3, 100]), "response_length": case.rng.choice([1, 4, 500, 500])}
    for row in _plain(case, branches):
        made = verl_mirror.adapter.output_fields(row, case.episode, logprobs=True, steps=0, **lengths)
        assert len(made["response_ids"]) <= lengths["response_length"] and made["response_ids"]
        yield Form(made["prompt_ids"], made["response_ids"], made["response_mask"], made["response_logprobs"])


def _skyrl(case: Case, branches: Branches) -> Iterator[Form]:
    given = _plain(case, branches)
    sets = all(row.kept is not None for row in given)
    options = skyrl_mirror.adapter.OutputOptions(step_wise=True, support_width=2 if sets else 0)
    made = skyrl_mirror.adapter.generator_output([(case.episode, given)], options, trajectory_ids=["t"])
    kept = [[[id for id in one if id >= 0] for one in row] for row in made["rollout_sample_support"]] if sets else None
    for number, (prompt, *rest) in enumerate(zip(*(made[name] for name in _SKYRL), strict=True)):
        response, mask, logprobs = rest
        yield Form(prompt, response, mask, logprobs, kept=None if kept is None else kept[number])
    assert made["is_last_step"] == [False] * (len(given) - 1) + [True]


_SKYRL = ("prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs")


def _trl(case: Case, branches: Branches) -> Iterator[Form]:
    made = batch_of([Completion.of(case.episode)], pad=PAD, longest=case.rng.choice([None, 1, 5]))
    for row in zip(made["prompt_ids"], made["completion_ids"], made["env_mask"], made["logprobs"], strict=True):
        yield Form(*row)


def _padded(case: Case, branches: Branches) -> Iterator[Form]:
    batch = padded_batch(
        [case.episode], pad_token_id=PAD, branches=branches, side=case.rng.choice(["left", "right"]),
        max_length=case.rng.choice([None, None, 4]), multiple_of=case.rng.choice([1, 8]), train_unscored=True,
    )  # fmt: skip
    names = (*batch.version_names, None)
    for number, there in enumerate(batch["attention_mask"].astype(bool)):
        row = {name: batch[name][number][there] for name in ("input_ids", "loss_mask", "logprobs", "versions")}
        kept = teacher = None
        if "kept_ids" in batch and batch["kept_known"][number]:
            offsets = batch["kept_offsets"][number]
            kept = [batch["kept_ids"][offsets[at] : offsets[at + 1]] for at in np.flatnonzero(there)]
        if "teacher_logprobs" in batch:
            teacher = batch["teacher_logprobs"][number][there]
        versions = [names[index] for index in row["versions"]]
        yield Form((), row["input_ids"], row["loss_mask"], row["logprobs"], versions, kept, teacher)


FORMS: Mapping[str, tuple[Callable[[Case, Branches], Iterator[Form]], bool]] = {
    "trajectories": (_trajectories, True),
    "rows": (_rows, True),
    "padded": (_padded, False),
    "slime": (_slime, False),
    "areal": (_areal, True),
    "verl": (_verl, False),
    "skyrl": (_skyrl, True),
    "trl": (_trl, False),
}
"""Every trainer's form, and whether it always has all tokens that are trained: nothing is cut or kept out."""
_UNCONDITIONAL = ("trajectories", "rows")
"""Forms of a branch; whether its episode is trained is decided later."""
_SCORED = ("areal", "verl", "skyrl")
"""Forms in which an episode without a reward is not trained."""


def problems(case: Case, name: str, branches: Branches) -> Iterator[str]:
    """Yield what is wrong with an episode in one form."""
    form, complete = FORMS[name]
    trained = name in _UNCONDITIONAL or is_trainable(case.episode, scored=name in _SCORED)
    everything = name == "trajectories"
    wanted = case.wanted(Branches.ALL if everything else branches) if trained else set()
    seen: Counter[int] = Counter()
    for one in form(case, branches):
        yield from _row_problems(case, one)
        seen.update(int(token) for token, mask in zip(one.response, one.mask, strict=True) if mask)
    if extra := set(seen) - wanted:
        yield f"trained, and must not be: {sorted(extra)}"
    if twice := [token for token, count in seen.items() if count > 1]:
        yield f"trained twice: {twice}"
    if complete and (lost := wanted - set(seen)):
        yield f"not trained: {sorted(lost)}"


def _row_problems(case: Case, one: Form) -> Iterator[str]:
    sizes = {len(part) for part in (one.response, one.mask, one.logprobs, one.versions, one.kept, one.teacher)
             if part is not None}  # fmt: skip
    if len(sizes) > 1:
        yield f"lengths differ: {sizes}"
        return
    whole = [int(token) for token in (*one.prompt, *one.response)]
    while whole and whole[0] == PAD:  # an empty prompt, or nothing sampled
        del whole[0]
    if not any(list(case.tree.ids(turn)[: len(whole)]) == whole for turn in case.tree) and whole not in ([], [PAD]):
        yield f"not a part of a branch: {whole}"
    for at, token in enumerate(map(int, one.response)):
        if not one.mask[at]:
            continue
        own = -token / (20 if one.over_sets else 10)
        if abs(one.logprobs[at] - own) > 1e-4 * abs(own):
            yield f"token {token} has logprob {one.logprobs[at]}"
        if one.versions is not None and one.versions[at] != case.versions[token]:
            yield f"token {token} has version {one.versions[at]!r}"
        if one.kept is not None and list(one.kept[at]) != [token, token + _FOREIGN]:
            yield f"token {token} has the kept set {list(one.kept[at])}"
        if one.teacher is not None and abs(one.teacher[at] + token / 30) > 1e-4 * token:
            yield f"token {token} has the teacher's logprob {one.teacher[at]}"


def attack_trainer_forms(trees: int, seed: int = 0) -> dict[str, Any]:
    """Bring random trees into every form.

    Args:
        trees: How many.
        seed: Of the first; each has its own, so that a failing one can be repeated alone.

    Returns:
        `trees`; `forms`: how many were made; `refused`: of these, with a typed error; `form_faults`: how many are
        wrong; `examples`: descriptions of these.
    """
    counts, examples = Counter(trees=0, forms=0, refused=0, form_faults=0), list[str]()
    for number in range(seed, seed + trees):
        case = random_case(number)
        counts["trees"] += 1
        for name in FORMS:
            for branches in Branches:
                counts["forms"] += 1
                try:
                    wrong = list(problems(case, name, branches))
                except ConfigurationError:  # the main branch is not certain, or nothing was sampled
                    counts["refused"] += 1
                    continue
                counts["form_faults"] += bool(wrong)
                examples += [f"tree {number}, {name}, {branches.value}: {one}" for one in wrong[:1]]
    return {**counts, "examples": examples}
