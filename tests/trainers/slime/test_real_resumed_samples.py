"""Partial rollouts on the real engine: paused five times in the middle of turns, each time with other weights."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from strands_sglang import SGLangClient
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.seal import seal
from strands_sglang.proof import rescore, verify
from strands_sglang.proof.finding import Verdict
from strands_sglang.proof.rescore import RescoreVerdict
from strands_sglang.trainers.slime import slime_rollout
from support.lab_servers import LabProcess
from support.rollout_agent import TOKENIZER, build, score, tasks
from support.trainers.slime_mirror import Sample, State, Status
from support.trainers.slime_validation import validate_batch, validate_sample

pytestmark = pytest.mark.engine

ROUNDS = 8
EPISODES = 48
RESPONSE = 160
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": RESPONSE, "stop": None}


def other_weights(folder: Path, number: int) -> Path:
    """Return a checkpoint that differs slightly from the tool policy."""
    shutil.copytree(TOKENIZER, folder)
    dice = np.random.default_rng(number)
    for file in folder.glob("*.safetensors"):
        raw = bytearray(file.read_bytes())
        begin = 8 + int.from_bytes(raw[:8], "little")
        kinds = {about["dtype"] for name, about in json.loads(raw[8:begin]).items() if name != "__metadata__"}
        assert kinds == {"F32"}
        values = np.frombuffer(raw, np.float32, offset=begin)
        values *= dice.normal(1.0, 0.02, len(values)).astype(np.float32)
        file.write_bytes(raw)
    return folder


@pytest.mark.parametrize("top_p", [pytest.param(1.0, marks=pytest.mark.soak), 0.8])
async def test_episodes_paused_five_times_over_five_versions(
    tool_policy: LabProcess, tmp_path: Path, state: State, top_p: float
) -> None:
    """Below a `top_p` of 1, every token has the set that it was chosen from, also over pauses and weight updates."""
    sampling = {**SAMPLING, "top_p": top_p}
    host, port = tool_policy.url.removeprefix("http://").split(":")
    args = SimpleNamespace(
        hf_checkpoint=TOKENIZER,
        sglang_router_ip=host,
        sglang_router_port=int(port),
        partial_rollout=True,
        sglang_server_concurrency=64,
        rollout_top_p=top_p,
    )
    generate = slime_rollout(build, reward=score, directory=tmp_path / "runs")
    samples: list[Any] = []
    for index, task in enumerate(tasks(EPISODES, seed=900)):
        one = Sample(group_index=index, index=index, prompt=task.prompt, label=task.answer, metadata=dict(task.data))
        samples.append(one)
    checkpoints = [other_weights(tmp_path / f"v{number}", number) for number in range(ROUNDS + 1)]
    paused: Counter[int] = Counter()
    seconds, sampled = 0.2, 0
    before: dict[int, list[int]] = {}
    async with SGLangClient(tool_policy.url) as client:
        for number, checkpoint in enumerate(checkpoints):
            await client.control.swap_weights(str(checkpoint), version=f"v{number}")
            state.aborted = False
            todo = [one for one in samples if one.status in (Status.PENDING, Status.ABORTED)]
            running = [asyncio.ensure_future(generate(args, one, dict(sampling))) for one in todo]
            if number < ROUNDS:
                await asyncio.sleep(seconds)
                state.aborted = True
                while not all(one.done() for one in running):
                    await client.control.abort_all()
                    await asyncio.wait(running, timeout=0.05)
            done = await asyncio.gather(*running)
            # As long as it takes this machine to sample a few tokens of each, and no longer.
            gained = sum(one.response_length for one in samples) - sampled
            seconds, sampled = seconds * (2 if gained < 96 else 0.7 if gained > 384 else 1), sampled + gained
            assert [id(one) for one in done] == [id(one) for one in todo]
            for one in todo:
                validate_sample(one, args)
                # Tokens sampled before are kept.
                known = before.get(one.index, [])
                assert one.tokens[: len(known)] == known[: len(one.tokens)] or not one.response
                if len(one.tokens) > len(known) and one.response:  # else paused before its earlier length
                    before[one.index] = list(one.tokens)
                paused[one.index] += one.status is Status.ABORTED
        assert all(one.status in (Status.COMPLETED, Status.TRUNCATED) for one in samples)
        validate_batch(samples, args)
        spans = Counter(len(set(one.weight_versions)) for one in samples)
        print(f"paused (times, samples): {sorted(Counter(paused.values()).items())}")
        print(f"weight versions in a sample (versions, samples): {sorted(spans.items())}")
        assert max(paused.values()) >= 5 and max(spans) >= 5
        assert all(one.response_length <= RESPONSE for one in samples)

        folder = next((tmp_path / "runs").iterdir())
        seal(folder)
        certificate = verify(folder)
        assert certificate.verdict is Verdict.PROVED, certificate.text()
        records = list(Ledger(folder).episodes())
        parts = sum(event.kind is EventKind.PARTIAL_CALL for record in records for event in record.events)
        assert len(records) == EPISODES and parts > EPISODES // 4, "hardly any turn was cut in its middle"
        on_record = {record.begin.data["sample"]: record for record in records if record.begin is not None}
        for one in samples:
            flat = on_record[one.index].trajectories()[0]
            assert one.tokens == flat.token_ids[: len(one.tokens)].tolist()
            assert (flat.kept is not None) is (top_p < 1.0)
            logprobs = flat.logprobs if flat.kept is None else np.asarray(flat.kept.logprobs)
            assert one.rollout_log_probs == logprobs[-one.response_length :].tolist()
            if flat.kept is not None:
                offsets = one.rollout_top_p_token_offsets
                assert len(offsets) == one.response_length + 1 and offsets[-1] == len(one.rollout_top_p_token_ids)
                response = one.tokens[-one.response_length :]
                for at in map(int, np.flatnonzero(one.loss_mask)):
                    assert response[at] in one.rollout_top_p_token_ids[offsets[at] : offsets[at + 1]]

        # Each span of tokens is as likely as it says under the very weights that sampled it.
        compared, largest = 0, 0.0
        for number, checkpoint in enumerate(checkpoints):
            await client.control.swap_weights(str(checkpoint), version=f"v{number}")
            report = await rescore(folder, tool_policy.url, tolerance=1e-3, temperature=1.0)
            assert report.verdict is not RescoreVerdict.DIFFERS, report.text()
            largest = max(largest, report.largest)
            compared += report.tokens
        on_ledger = sum(len(turn.sampled) for record in records for turn in record.tree().turns)
        assert compared == on_ledger
        print(f"{compared} tokens re-scored under the weights that sampled them: largest difference {largest:.1e}")
        await client.control.swap_weights(TOKENIZER, version="default")
