"""`strands-sglang bench`: load on a scripted server, figures, and failures."""

from __future__ import annotations

import asyncio
import json
from array import array
from typing import Any

import orjson
import pytest

from strands_sglang.cli._bench_load import LoadPlan, quantile, run_level, token_pool
from strands_sglang.cli.main import main
from strands_sglang.engine import FinishReason, Generation
from strands_sglang.errors import EngineUnavailableError
from strands_sglang.tokens import VersionSpan
from support.scripted import ScriptedServer, Wire, answer

POOL = list(range(100, 164))


class Cached:
    """An engine with a prefix cache that samples as many tokens as it is asked for."""

    def __init__(self, fails: int | None = None) -> None:
        self.sent: list[list[int]] = []
        self.keys: list[str | None] = []
        self.running = self.most = 0
        self.fails = fails

    async def generate(self, input_ids: Any, sampling_params: Any = None, **options: Any) -> Generation:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        ids = list(input_ids)
        if self.fails is not None and len(self.sent) >= self.fails:
            raise EngineUnavailableError("gone", attempts=1)
        cached = max((_common(ids, one) for one in self.sent), default=0)
        count = sampling_params["max_new_tokens"]
        sampled = [POOL[(len(self.sent) * 7 + number) % len(POOL)] for number in range(count)]
        self.sent.append(ids + sampled)
        self.keys.append(options.get("routing_key"))
        return Generation(
            array("i", sampled),
            array("d", [-1.0] * count),
            FinishReason.LENGTH,
            versions=(VersionSpan(None, 0, count),),
            cached_tokens=cached,
        )


def _common(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


async def test_conversations_have_the_planned_sizes() -> None:
    engine, plan = Cached(), LoadPlan(prompt_tokens=50, output_tokens=6, turns=3, turn_tokens=4)
    result = await run_level(engine, plan, POOL, concurrency=4, conversations=8, seed=1)
    assert engine.most == 4 and len(engine.sent) == 24 == len(result.latencies)
    assert sorted({len(one) - 6 for one in engine.sent}) == [50, 60, 70] and plan.longest == 76
    assert result.sampled_tokens == 24 * 6 and result.prompt_tokens == 8 * (50 + 60 + 70)
    assert len(set(engine.keys)) == 8 and len(result.first_latencies) == 8
    # A later turn finds the turn before it; other conversations share almost nothing.
    assert result.cached_share is not None
    assert 8 * (56 + 66) <= (result.cached_tokens or 0) < 8 * (56 + 66) + 60
    facts = result.to_dict()
    assert facts["failures"] == 0 and facts["turn_seconds"]["p50"] <= facts["turn_seconds"]["p99"]
    assert facts["output_tokens_per_second"] == pytest.approx(result.sampled_tokens / result.seconds)


async def test_shared_tokens_are_cached() -> None:
    engine, plan = Cached(), LoadPlan(prompt_tokens=50, output_tokens=2, turns=1, shared_tokens=40)
    result = await run_level(engine, plan, POOL, concurrency=1, conversations=3, seed=1)
    assert 80 <= (result.cached_tokens or 0) < 90
    assert len({tuple(one[:40]) for one in engine.sent}) == 1 and len({tuple(one[40:50]) for one in engine.sent}) == 3


async def test_seeds() -> None:
    plan = LoadPlan(prompt_tokens=20, output_tokens=1, turns=1)
    sent = []
    for seed in (1, 1, 2):
        engine = Cached()
        await run_level(engine, plan, POOL, 1, 2, seed)
        sent.append([one[:20] for one in engine.sent])
    assert sent[0] == sent[1] != sent[2]


async def test_failures_end_their_conversation() -> None:
    result = await run_level(Cached(fails=3), LoadPlan(10, 2, 4, 2), POOL, concurrency=1, conversations=2, seed=1)
    assert (len(result.latencies), result.failures) == (3, 2) and "EngineUnavailableError: gone" in result.error


async def test_only_ids_of_the_server_are_sent() -> None:
    engine = Cached()
    pool = await token_pool(engine)
    assert set(pool) <= {1, *POOL} and all(one[:1] == [1] for one in engine.sent)


def test_quantiles() -> None:
    assert quantile([], 0.5) is None and quantile([3.0], 0.99) == 3.0
    assert [quantile(list(map(float, range(1, 101))), share) for share in (0.5, 0.9, 0.99)] == [50.0, 90.0, 99.0]


async def _serve(wire: Wire) -> None:
    received = await wire.read_body()
    if received.path == "/v1/models":
        await wire.reply(orjson.dumps({"data": [{"id": "m", "max_model_len": 200}]}))
    elif received.path == "/generate":
        body = received.json()
        if len(body["input_ids"]) == 99:
            await wire.reply(b'{"error": {"message": "bad \\u001b[2J request"}}', 400)
            return
        ids = [POOL[number % len(POOL)] for number in range(body["sampling_params"]["max_new_tokens"])]
        assert body["sampling_params"]["ignore_eos"] is True
        finish = {"type": "length", "length": len(ids)}
        await wire.reply(orjson.dumps(answer(received, ids, [-0.5] * len(ids), cached_tokens=5, finish_reason=finish)))
    else:
        await wire.reply(b"{}", 404)


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--prompt-tokens", "20", "--output-tokens", "4", "--turn-tokens", "2", "--turns", "2"]
    with ScriptedServer(_serve) as server:
        given = ["bench", "--base-url", server.url, "--concurrency", "1,3", "--rounds", "1", *sizes]
        assert main(given) == 0
        head, _, columns, one, three = capsys.readouterr().out.splitlines()
        assert head.startswith(f"{server.url}  conversations of 2 turns: prompt of 20 tokens, 4 sampled in each turn")
        assert "output tok/s" in columns and one.split()[:3] == ["1", "2", "0"] and three.split()[:3] == ["3", "6", "0"]
        assert three.split()[-1] == "22%"
        assert main([*given, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert [level["turns"] for level in report["levels"]] == [2, 6] and report["plan"]["turns"] == 2
        assert main([*given, "--prompt-tokens", "190"]) == 0  # just fits
        assert main([*given, "--prompt-tokens", "195"]) == 2
        assert "must fit into the server's context of 200 tokens, got 205" in capsys.readouterr().err
        assert main([*given, "--prompt-tokens", "99", "--turns", "1"]) == 1
        printed = capsys.readouterr()
        assert "1 failed at concurrency 1: RequestRejectedError" in printed.err and "\x1b" not in printed.err


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--shared-tokens", "9", "--prompt-tokens", "8"]) == 2
    assert "--shared-tokens must be at most --prompt-tokens (8)" in capsys.readouterr().err
    assert main(["bench", "--base-url", "http://127.0.0.1:9", "--client-options", '{"first_contact": 0.1}']) == 2
    assert "127.0.0.1:9" in capsys.readouterr().err
    assert main(["bench", "--client-options", '{"nope": 1}']) == 2
    for wrong in (["--concurrency", "1,x"], ["--concurrency", "0"], ["--turns", "0"]):
        with pytest.raises(SystemExit) as exit:
            main(["bench", *wrong])
        assert exit.value.code == 2
