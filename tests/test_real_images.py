"""Images on a real engine: two small models that really look, agents whose tools return pictures, everything proved."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.engine import PromptImage
from strands_sglang.errors import ConfigurationError, CountMismatchError
from strands_sglang.ledger.reader import Ledger
from strands_sglang.proof.rescore import RescoreVerdict, rescore
from strands_sglang.proof.verify import verify
from strands_sglang.runs import EndReason, Episode, ReplayVerdict, Task, replay, rollout
from support.lab_servers import LabProcess
from support.lab_servers import engine as lab
from support.pictures import image_block, png

pytestmark = [pytest.mark.engine]

COLOURS = {"red": (220, 30, 30), "green": (20, 180, 40), "blue": (40, 60, 220), "yellow": (240, 220, 30)}
SERVERS = ("tiny_qwen3_vl", pytest.param("tiny_qwen25_vl", marks=pytest.mark.soak))
SAMPLING = {"max_new_tokens": 40, "temperature": 1.0}


def folder_of(server: LabProcess) -> str:
    return str(lab.MODELS[server.name].folder)


def flat(colour: str, rng: random.Random) -> bytes:
    """Return a picture of one colour, of any size."""
    return png(rng.randrange(56, 128), rng.randrange(56, 128), colour=COLOURS[colour])


@tool
def look(place: int) -> dict[str, Any]:
    """Look at a place.

    Args:
        place: Its number.
    """
    rng = random.Random(place)
    return {"status": "success", "content": [image_block(flat(rng.choice(list(COLOURS)), rng))]}


def questions(number: int) -> list[Any]:
    """Return two to four questions, of which some show a picture and the others need the tool."""
    rng = random.Random(number)
    asked: list[Any] = []
    for _ in range(rng.randrange(2, 5)):
        if rng.random() < 0.5:
            colour = rng.choice(list(COLOURS))
            asked.append([image_block(flat(colour, rng)), {"text": "Which colour is it?"}])
        else:
            asked.append(f"Which colour is at {rng.randrange(10)}?")
    return asked


def build(task: Task, model: SGLangModel) -> Any:
    agent = Agent(model=model, tools=[look], callback_handler=None, conversation_manager=NullConversationManager())

    async def ask() -> str:
        text = ""
        for question in questions(task.data["number"]):
            text = str(await agent.invoke_async(question, limits={"turns": 4})).strip()
        return text

    return ask


def tasks(count: int) -> list[Task]:
    return [Task("pictures", data={"number": number}, id=f"p{number}") for number in range(count)]


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> LabProcess:
    found: LabProcess = request.getfixturevalue(request.param)
    return found


async def play(server: LabProcess, count: int, directory: Path | None, **options: Any) -> list[Episode]:
    async with SGLangClient(server.url) as client:
        result = await rollout(
            build, tasks(count), client=client, tokenizer=folder_of(server), directory=directory, concurrency=8,
            sampling_params=SAMPLING, **options,
        )  # fmt: skip
    return list(result)


async def test_a_hundred_conversations_are_exact(server: LabProcess, tmp_path: Path) -> None:
    """Every answer carries the ids that the engine computed, and the client compares them with ours."""
    episodes = await play(server, 50, tmp_path / "run")
    assert {episode.end_reason for episode in episodes} == {EndReason.ANSWERED}, [e.failure for e in episodes]
    images = [len(episode.tree.images(episode.tree.branches()[-1])) for episode in episodes]
    assert sum(images) >= 100
    certificate = verify(tmp_path / "run")
    assert certificate.proved, certificate.text()
    assert certificate.content_files > 20
    report = await rescore(tmp_path / "run", server.url)
    assert report.verdict is RescoreVerdict.AGREES, report.text()
    assert report.largest < 1e-3
    # The model looks: most answers name the colour of the last picture.
    right = sum(answers_right(episode) for episode in episodes)
    assert right >= 0.35 * len(episodes), right  # one of six colours, so 0.17 by chance; sampled at temperature 1


def answers_right(episode: Episode) -> bool:
    """Return whether the last answer is the colour of the last picture that was shown."""
    last = questions(episode.task.data["number"])[-1]
    if isinstance(last, str):
        rng = random.Random(int(last.rstrip("?").split()[-1]))
        expected = rng.choice(list(COLOURS))
    else:
        rng = random.Random(episode.task.data["number"])
        expected = ""
        for _ in range(rng.randrange(2, 5)):
            if rng.random() < 0.5:
                expected = rng.choice(list(COLOURS))
                flat(expected, rng)
            else:
                rng.randrange(10)
    return episode.text == f"It is {expected}."


async def test_cached_tokens_cover_all_but_the_new(tiny_qwen3_vl: LabProcess, tmp_path: Path) -> None:
    episodes = await play(tiny_qwen3_vl, 6, None)
    for episode in episodes:
        path = episode.tree.path(episode.tree.branches()[-1])
        for before, turn in pairwise(path):
            # All of the branch so far but its last token, which was sampled and never fed.
            assert turn.detail["cached_tokens"] >= before.end - 1 - len(turn.closing), turn.detail


async def test_replay_and_resume(tiny_qwen3_vl: LabProcess, tmp_path: Path) -> None:
    episodes = await play(tiny_qwen3_vl, 6, tmp_path / "run")
    replayed = await replay(build, tmp_path / "run", tokenizer=folder_of(tiny_qwen3_vl), sampling_params=SAMPLING)
    assert [one.verdict for one in replayed] == [ReplayVerdict.IDENTICAL] * 6
    again = await play(tiny_qwen3_vl, 6, tmp_path / "run")
    assert all(episode.restored for episode in again)
    assert {one.id: one.image_files for one in again} == {one.id: one.image_files for one in episodes}


async def test_trainer_computes_the_same_logprobs(server: LabProcess, tmp_path: Path) -> None:
    """transformers, with the pixels of our files and our expanded ids, gives the engine's logprobs."""
    episodes = await play(server, 4, tmp_path / "run")
    rows = []
    for episode in episodes:
        (trajectory,) = episode.trajectories
        files = {}
        for image in trajectory.images:
            path = tmp_path / f"{image.digest}.png"
            path.write_bytes(episode.image_files[image.digest])
            files[image.digest] = str(path)
        rows.append({**trajectory.to_dict(), "files": files})
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    environment = lab.environment()
    assert environment is not None
    script = Path(__file__).parent / "support" / "score_images.py"
    done = subprocess.run(
        [str(environment / "bin" / "python"), str(script), folder_of(server), str(tmp_path / "rows.json")],
        env=lab.variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["tokens"] > 50
    assert result["largest"] < 1e-3, result
    assert result["swapped"] > 0.01, "another image should give other logprobs"


async def test_wrong_requests_are_refused_with_words(tiny_qwen3_vl: LabProcess) -> None:
    async with SGLangClient(tiny_qwen3_vl.url, max_retries=0) as client:
        pad, picture = 151655, png(64, 64)
        ids = [9707, 151652, *[pad] * 4, 151653, 9707]
        turn = await client.generate(ids, SAMPLING, images=[PromptImage(2, 4, picture)])
        assert turn.prompt_tokens == len(ids)
        with pytest.raises(CountMismatchError, match="computed other ids"):
            await client.generate([*ids[:3], *ids[4:]], SAMPLING, images=[PromptImage(2, 3, picture)])
        with pytest.raises(ConfigurationError, match="must be at 4 equal ids"):
            await client.generate(ids, SAMPLING, images=[PromptImage(1, 4, picture)])


async def test_streamed_turns_have_images_too(tiny_qwen3_vl: LabProcess) -> None:
    async with SGLangClient(tiny_qwen3_vl.url) as client:
        settings: Any = {"sampling_params": SAMPLING, "streaming": True}
        for _ in range(10):  # now and then the model answers without looking
            model = SGLangModel(tokenizer=folder_of(tiny_qwen3_vl), client=client, **settings)
            agent = Agent(model=model, tools=[look], callback_handler=None)
            await agent.invoke_async("Which colour is at 3?", limits={"turns": 4})
            (trajectory,) = model.current_episode.trajectories()
            if trajectory.images:
                break
        assert len(trajectory.images) >= 1


async def test_killed_run_continues_exactly(tiny_qwen3_vl: LabProcess, tmp_path: Path) -> None:
    """A process is killed in the middle of its run; the next one finishes it, and `verify` proves all of it."""
    arguments = [sys.executable, __file__, tiny_qwen3_vl.url, folder_of(tiny_qwen3_vl), str(tmp_path / "run")]
    process = await asyncio.create_subprocess_exec(*arguments)
    for _ in range(600):
        await asyncio.sleep(0.1)
        if (tmp_path / "run" / "run.json").exists() and Ledger(tmp_path / "run").ids():
            break
    process.kill()
    await process.wait()
    episodes = await play(tiny_qwen3_vl, 12, tmp_path / "run")
    assert len(episodes) == 12 and {episode.end_reason for episode in episodes} == {EndReason.ANSWERED}
    certificate = verify(tmp_path / "run")
    assert certificate.proved, certificate.text()


if __name__ == "__main__":

    async def _main() -> None:
        async with SGLangClient(sys.argv[1]) as client:
            await rollout(
                build, tasks(12), client=client, tokenizer=sys.argv[2], directory=sys.argv[3], concurrency=4,
                sampling_params=SAMPLING,
            )  # fmt: skip

    asyncio.run(_main())
