"""A limit of staleness on a real engine, whose weights are updated while episodes run: `rollout`, slime and TRL."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from strands import tool

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.ledger.reader import Ledger
from strands_sglang.proof.verify import verify
from strands_sglang.runs import Limits, MaxStaleness, RunOptions, Task, rollout
from strands_sglang.trainers.rows import branches_of
from strands_sglang.trainers.slime import slime_rollout
from strands_sglang.trainers.trl import trl_rollout
from strands_sglang.trainers.trl.batch import MaskReason
from support.examples import size
from support.lab_servers import LabProcess, task
from support.rollout_agent import (
    SAMPLING,
    TOKENIZER,
    TURNS,
    WAYS,
    agent_for,
    asking,
    build,
    calculator,
    score,
    tasks,
)
from support.trainers.slime_mirror import Sample
from support.trainers.slime_validation import validate_sample
from support.trainers.trl_doubles import Trainer

pytestmark = [pytest.mark.engine, pytest.mark.own_servers]

TASKS = size(12, 64)
LIMIT = 1
VERSIONS = ["default", "1", "2", "3", "4", "5"]
"""Those of five updates, oldest first. The first is what a server reports before any."""
HELD = ("t0", "g0")
"""The first task, here and in slime. Its calculator answers only after two updates: its first turns become too old."""


@pytest.fixture(autouse=True)
def tools_take_time() -> Iterator[None]:
    WAYS.tool_seconds = 0.2
    yield
    WAYS.tool_seconds = 0.0


async def update(client: SGLangClient, version: str) -> None:
    """Load the same weights under another name: what is shown does not depend on how the policy changes."""
    (result,) = await client.control.swap_weights(TOKENIZER, version=version)
    assert result.ok, result.message


class UpdatedClient(SGLangClient):
    """A client whose server gets all `VERSIONS`, one after the other."""

    def __init__(self, url: str) -> None:
        super().__init__(url, max_connections=64)
        self.answers: Counter[str | None] = Counter()
        self.twice = asyncio.Event()
        """Set after two updates."""
        self.held = 0

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        answer = await super().generate(*args, **kwargs)
        self.answers.update(span.version for span in answer.versions[-1:])
        return answer

    async def updates(self, calls: int) -> None:
        """Update the weights after so many answers of each version; return when the last has answered too."""
        try:
            for number, version in enumerate(VERSIONS):
                await update(self, version)
                if number == 2:
                    self.twice.set()
                began = time.monotonic()
                while self.answers[version] < (calls if version != VERSIONS[-1] else 1):
                    assert time.monotonic() - began < 120, f"no answers of version {version}: {self.answers}"
                    await asyncio.sleep(0.02)
        finally:
            self.twice.set()

    def build(self, given: Task, model: SGLangModel) -> Any:
        """As `rollout_agent.build`, but the tool of the task `HELD` waits for the second update."""
        if given.id not in HELD:
            return build(given, model)

        @tool(name="calculator", description=calculator.tool_spec["description"])
        async def waiting(expression: str) -> str:
            self.held += 1
            await self.twice.wait()
            return task.calculate(expression)

        return asking(agent_for(model, tools=[waiting]), given)


def check_export(directory: Path, episodes: Any) -> int:
    """Check an export against the ledger, token by token; return the largest age of an exported token."""
    exported = [one.trajectory for one in branches_of(episodes)]
    certificate = verify(directory, exported=exported, exported_part=True)
    assert certificate.proved, certificate.text()
    assert verify(directory, exported=[one.trajectory for one in branches_of(directory)]).proved
    decided = {record.id: record.staleness for record in Ledger(directory).episodes()}
    oldest = 0
    for branch in branches_of(episodes):
        flat, event = branch.trajectory, decided[branch.episode]
        assert event is not None
        now = VERSIONS.index(str(event.data["current"]))
        for number in set(flat.versions[flat.loss_mask == 1].tolist()):
            oldest = max(oldest, now - VERSIONS.index(str(flat.version_names[number])))
    return oldest


DECIDED = {"drop": "dropped", "retry": "retried", "mask": "masked"}


def decisions(directory: Path) -> dict[str, str]:
    """Return what was decided about each episode."""
    found = {one.id: one.staleness for one in Ledger(directory).episodes()}
    return {id: str(event.data["decision"]) for id, event in found.items() if event is not None}


@pytest.mark.parametrize("action", DECIDED)
async def test_run_over_weight_updates(deterministic: LabProcess, tmp_path: Path, action: str) -> None:
    client = UpdatedClient(deterministic.url)
    async with client:
        await update(client, VERSIONS[0])
        updating = asyncio.ensure_future(client.updates(TASKS))
        run = await rollout(
            client.build,
            tasks(3 * TASKS if action == "drop" else TASKS, questions=3),  # some are left after the last update
            client=client,
            tokenizer=TOKENIZER,
            reward=score,
            samples_per_task=2,
            seed=7,
            concurrency=TASKS,
            limits=Limits(max_turns=3 * TURNS),
            sampling_params=SAMPLING,
            directory=tmp_path / "run",
            max_staleness=MaxStaleness(LIMIT, action, retries=8),
            options=RunOptions(preflight=False),
        )
        await updating
    versions = {version for record in Ledger(tmp_path / "run").episodes() for version in used(record)}
    assert versions == set(VERSIONS) and client.held
    oldest = check_export(tmp_path / "run", run)
    assert oldest <= LIMIT and len(run) > 0
    certificate, decided = verify(tmp_path / "run"), decisions(tmp_path / "run")
    print(f"{action}: {dict(certificate.staleness)}, {certificate.tokens.stale} stale of "
          f"{certificate.tokens.sampled} tokens, oldest exported {oldest}, answers {dict(client.answers)}")  # fmt: skip
    assert decided["t0/0"] == DECIDED[action]
    assert certificate.staleness["kept"] > 0 and certificate.staleness == Counter(decided.values())
    assert set(decided.values()) <= {"kept", "dropped", DECIDED[action]}
    if action == "mask":
        assert certificate.tokens.stale > 0
        assert not run.metrics.groups_stale and len(run.groups) == TASKS


def used(record: Any) -> set[str]:
    return {span[0] for call in record.calls for span in call.data["versions"]}


@pytest.mark.parametrize("action", DECIDED)
async def test_slime_rollout_over_weight_updates(deterministic: LabProcess, tmp_path: Path, action: str) -> None:
    """One sample per episode: old ones are kept out of the loss, or run again, or masked token by token."""
    client = UpdatedClient(deterministic.url)
    async with client:
        args = SimpleNamespace(hf_checkpoint=TOKENIZER, rollout_top_p=1.0, rollout_max_context_len=None)
        await update(client, VERSIONS[0])
        generate = slime_rollout(
            client.build, reward=score, client=client, tokenizer=TOKENIZER, directory=tmp_path,
            task=lambda sample: sample.metadata["task"], limits=Limits(max_turns=3 * TURNS, max_new_tokens=64),
            max_staleness=MaxStaleness(LIMIT, action, retries=8),
        )  # fmt: skip
        given = [Sample(index=number, group_index=number) for number in range(TASKS)]
        for one, asked in zip(given, tasks(TASKS, questions=3), strict=True):
            one.prompt, one.metadata = [{"role": "user", "content": "?"}], {"task": asked}
        updating = asyncio.ensure_future(client.updates(TASKS // 3))
        samples = await asyncio.gather(*(generate(args, one, {**SAMPLING, "max_new_tokens": 600}) for one in given))
        await updating
    (directory,) = tmp_path.iterdir()
    events = {record.id: record.staleness for record in Ledger(directory).episodes()}
    for sample in samples:
        validate_sample(sample)
        about = sample.metadata["strands_sglang"]
        event = events[about["episode"]]
        assert event is not None
        assert sample.remove_sample == (about["removed"] is not None)
        assert (about["removed"] == "stale") == (event.data["decision"] == "dropped")
        if not sample.remove_sample:
            trained = [one for one in event.data["ages"] if action != "mask" or one[1] <= LIMIT]
            assert all(age <= LIMIT for _, age in trained)
    decided = Counter(decisions(directory).values())
    print(f"slime, {action}: {dict(decided)}, answers {dict(client.answers)}")
    assert client.held and decided[DECIDED[action]] > 0
    assert action != "retry" or len(events) > TASKS


def test_trl_rollout_trains_no_older_tokens(deterministic: LabProcess, tmp_path: Path) -> None:
    """A rollout function of TRL, at a step during which another process loads older weights."""
    client = SGLangClient(deterministic.url, max_connections=64)
    loads: list[str] = []

    def sync(trainer: Any, version: str, engine: Any) -> None:
        engine.run(update(client, version))

    async def building(given: Any, model: Any) -> Any:
        if loads and given.id.startswith(("t4", "t5")):
            await update(client, loads.pop())
        return build(given, model)

    WAYS.tool_seconds = 0.0
    asked = tasks(8)
    rows = [{"prompt": one.prompt, "number": number} for number, one in enumerate(asked)]
    settings: dict[str, Any] = {"reward": score, "client": client, "sync": sync, "drift_rows": 0, "directory": tmp_path}
    settings |= {"limits": Limits(max_turns=TURNS, max_new_tokens=64), "concurrency": 1, "tokenizer": TOKENIZER}
    settings |= {"tasks": {one.prompt: one for one in asked}.get, "options": RunOptions(preflight=False)}
    rollouts = trl_rollout(building, max_staleness=1, **settings)
    trainer = Trainer(processing_class=None, train_dataset=rows)
    prompts = [one.prompt for one in asked]
    names = []
    for step in (20, 21, 22):
        trainer.state.global_step = step
        batch = rollouts(prompts, trainer)
        assert rollouts.last is not None and not any(one.masked for one in rollouts.last.completions)
        assert all(any(mask) for mask in batch["env_mask"])
        names.append(str(rollouts.last.version))
    trainer.state.global_step = 23
    loads.append(names[0])
    batch = rollouts(prompts, trainer)
    last = rollouts.last
    assert last is not None and last.directory is not None
    stale = [number for number, one in enumerate(last.completions) if one.masked is MaskReason.STALE]
    assert stale == [4, 5, 6, 7] and last.metrics["rollout/stale_groups"] == 4
    for number, (mask, reward) in enumerate(zip(batch["env_mask"], batch["strands_reward"], strict=True)):
        assert (number in stale) == (not any(mask)) == (reward is None)
    certificate = verify(last.directory, exported=[row.trajectory for row in last.rows], exported_part=True)
    assert certificate.proved and certificate.staleness == {"kept": 4, "dropped": 4}, certificate.text()
    rollouts.close()
