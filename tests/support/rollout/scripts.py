"""What the tests of the runner share: an engine whose answers follow from the prompt, runs, and crashes.

An answer, its logprobs and its request id depend on the prompt and on how often it was asked before, on nothing else:
a run that was interrupted anywhere and resumed must come to the very same trajectories.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from strands_sglang.engine import Generation
from strands_sglang.errors import ContextOverflowError
from strands_sglang.ledger.encoding import encoded as encode_event
from strands_sglang.ledger.encoding import ids_digest, trajectory_digest
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.shard import OpenShard
from strands_sglang.proof.finding import Verdict
from strands_sglang.proof.verify import verify
from strands_sglang.runs import Episode, RunOptions, RunResult, rollout
from strands_sglang.tokens import TokenTree
from support.families import tokenizer
from support.scripted_engine import Answer, EngineCall, Reply, ScriptedEngine, tool_call

FAMILY = "qwen2.5"

Script = Callable[[str, int], Answer]
"""The text of a prompt, and how often it was asked before, to what the engine does."""


class PromptEngine(ScriptedEngine):
    """An engine that always gives the same answer to the same prompt asked for the n-th time. It can be pickled."""

    def __init__(self, script: Script, family: str = FAMILY, context: int | None = None) -> None:
        self.family, self.by_prompt = family, script
        self.context = context
        """Tokens of prompt and budget together that it takes; None: any number."""
        self.delay = 0.0
        """Seconds before it looks at a call."""
        self.tail: int | None = None
        """Tokens at the end of a prompt that it looks at and keeps; None: all."""
        self.given: dict[str, set[int]] = {}
        """The numbers of the answers that were given to each prompt, by its digest."""
        super().__init__(tokenizer(family), lambda prompt: "")

    def __reduce__(self) -> Any:
        return PromptEngine, (self.by_prompt, self.family, self.context)

    @property
    def digests(self) -> Counter[str]:
        return Counter(call.asked["prompt"] for call in self.calls if call.answered)

    async def generate(self, input_ids: Any, sampling_params: Any = None, **asked: Any) -> Generation:
        if self.delay:
            await asyncio.sleep(self.delay)
        return await super().generate(input_ids, sampling_params, **asked)

    def follows(self, events: Iterable[Event]) -> PromptEngine:
        """Go on where an engine was that has given the answers of these events; faults behind all others come again."""
        known = list(events)
        while known and known[-1].kind is EventKind.CALL_ERROR:
            known.pop()
        for event in known:
            if event.kind is EventKind.CALL:
                number = int(event.data["detail"]["rid"].rpartition("/")[2])
                self.given.setdefault(event.data["prompt_digest"], set()).add(number)
            elif event.kind is EventKind.CALL_ERROR and self.context is None:
                self._next_number(event.data["prompt_digest"])
        return self

    def _next_number(self, prompt: str) -> int:
        given = self.given.setdefault(prompt, set())
        number = next(number for number in range(len(given) + 1) if number not in given)
        given.add(number)
        return number

    def _next(self, input_ids: Any, sampling: Any, asked: dict[str, Any]) -> tuple[EngineCall, Reply]:
        prompt, sent = ids_digest(input_ids), len(input_ids)
        kept = input_ids if self.tail is None else input_ids[-self.tail :]
        call = EngineCall([int(token) for token in kept], dict(sampling or {}), {**asked, "prompt": prompt})
        with self._lock:
            self.calls.append(call)
            wanted = sent + call.sampling.get("max_new_tokens", 0)
            if self.context is not None and wanted > self.context:
                raise ContextOverflowError("too long", requested_tokens=wanted, limit_tokens=self.context)
            before = self._next_number(prompt)
        answer = self.by_prompt(self.decode(call.ids), before)
        if isinstance(answer, BaseException):
            raise answer
        call.asked |= {"nth": before, "sent": sent}
        return call, Reply(answer) if isinstance(answer, str) else answer

    def _generation(self, call: EngineCall, reply: Reply) -> Generation:
        made, key = super()._generation(call, reply), f"{call.asked['prompt']}/{call.asked['nth']}"
        first = int(hashlib.blake2b(key.encode(), digest_size=2).hexdigest(), 16) / 1024
        logprobs, sent = array("d", [-first - at / 1024 for at in range(len(made))]), call.asked["sent"]
        return replace(made, logprobs=logprobs, prompt_tokens=sent, cached_tokens=sent // 2, rid=f"rid-{key}")


def asked(prompt: str) -> str:
    """Return the last question of a user in a prompt; "" when there is none."""
    found = re.findall(r"<\|im_start\|>user\n((?:(?!<tool_response>).)*?)<\|im_end\|>", prompt, re.DOTALL)
    return found[-1] if found else ""


def last_step(prompt: str) -> int:
    """Return the number of the last step that a tool has answered in a prompt; 0 when there is none."""
    found = re.findall(r"<tool_response>\s*step (\d+)", prompt)
    return int(found[-1]) if found else 0


def steps(count: int, end: str = "the end") -> Script:
    """Return a script that calls the tool `step` with 1, 2, ... up to a number and then ends."""

    def script(prompt: str, before: int) -> Answer:
        done = last_step(prompt)
        return tool_call("step", number=done + 1) if done < count else end

    return script


async def run(
    build: Callable[..., Any], tasks: Iterable[Any], engine: Any, directory: Path | None = None, **settings: Any
) -> RunResult:
    """Return a rollout with the tokenizer of the engine; settings may also be fields of `RunOptions`."""
    names = {one.name for one in fields(RunOptions)} & set(settings)
    if names:
        settings["options"] = RunOptions(**{name: settings.pop(name) for name in names})
    return await rollout(build, tasks, client=engine, tokenizer=engine.tokenizer, directory=directory, **settings)


def summary(tree: TokenTree, *, ordered: bool = True) -> list[str]:
    """Return what every trajectory of a tree is."""
    if ordered:
        return [trajectory_digest(one) for one in tree.trajectories()]
    branches = [(one.token_ids.tobytes(), one.loss_mask.tobytes()) for one in tree.trajectories()]
    turns = [(turn.sampled.tobytes(), turn.logprobs.tobytes()) for turn in tree]
    return [hashlib.blake2b(b"".join(parts)).hexdigest() for those in (branches, turns) for parts in sorted(those)]


def summaries(episodes: Iterable[Episode], *, ordered: bool = True) -> dict[str, list[str]]:
    return {episode.id: summary(episode.tree, ordered=ordered) for episode in episodes}


def assert_proved(directory: Path) -> None:
    """Check that `verify` proves a run, or says that it proves nothing because no token is trained."""
    certificate = verify(directory)
    assert certificate.verdict in (Verdict.PROVED, Verdict.EMPTY), certificate.text()


def assert_same(directory: Path, episodes: Iterable[Episode]) -> None:
    for episode in episodes:
        record = Ledger(directory).episode(episode.id)
        assert record.end is not None and record.end.data["end_reason"] == episode.end_reason.value
        assert summary(record.tree()) == summary(episode.tree), episode.id


def record_of(directory: Path, id: str | None = None) -> EpisodeRecord:
    """Return the record of an episode; without an id, of the only one."""
    ledger = Ledger(directory)
    return ledger.episode(ledger.ids()[0] if id is None else id)


def raw(events: Sequence[Event]) -> list[bytes]:
    from strands_sglang.ledger.encoding import first_link

    encoded, head = [], first_link(events[0].episode)
    for event in events:
        digest = event.digest
        encoded.append(encode_event(event, head))
        assert event.digest == digest, "an event that does not come back as it was written"
        head = digest
    return encoded


def crashed(directory: Path, into: Path, kept: int | dict[str, int]) -> Path:
    """Make the directory that a process leaves which died when so many events of each episode were written."""
    shutil.rmtree(into, ignore_errors=True)
    (into / "ledger").mkdir(parents=True)
    shutil.copy(directory / "run.json", into / "run.json")
    events: list[bytes] = []
    for record in Ledger(directory).episodes():
        assert not record.problems
        events += raw(record.events)[: kept if isinstance(kept, int) else kept.get(record.id, 0)]
    if events:
        shard = OpenShard(into / "ledger" / "0-dead.ledger", {"format": 1, "worker": "0"})
        shard.append(b"".join(events), len(events))
        shard.abandon()
    return into


@dataclass
class Log:
    """What ran: the names of tools and whatever else a test wants to count."""

    ran: list[str] = field(default_factory=list)

    def __call__(self, what: str) -> None:
        self.ran.append(what)

    def taken(self) -> Counter[str]:
        ran, self.ran[:] = Counter(self.ran), []
        return ran


RAN = Log()
"""What the tools of this process did."""
