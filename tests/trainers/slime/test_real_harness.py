"""The test harness: slime's rollout works with a minimal function, and violations of its contract are detected."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from support.lab_servers import Routed, task
from support.trainers.slime_checks import check_batch, check_rescored, check_witnessed
from support.trainers.slime_world import SlimeWorld, slime

pytestmark = [pytest.mark.slime, pytest.mark.engine]


class MinimalGenerate:
    """The tool policy's task as a generate function, token for token, with as little code as possible."""

    def __init__(self, heed_abort: bool = True, tool_seconds: float = 0.0) -> None:
        self.heed_abort, self.tool_seconds = heed_abort, tool_seconds

    async def __call__(self, args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        state = slime("rollout.sglang_rollout").GenerateState(args)
        encode = state.tokenizer.encode
        text = f"<|im_start|>user\n{sample.prompt}<|im_end|>\n<|im_start|>assistant\n"
        sample.tokens = encode(text, add_special_tokens=False)
        url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
        async with aiohttp.ClientSession(headers={"X-SMG-Routing-Key": sample.session_id}) as session:
            for _ in range(task.MAX_TOOL_CALLS + 1):
                body = {"rid": f"{sample.session_id}-{len(sample.tokens)}", "input_ids": sample.tokens}
                body |= {"sampling_params": sampling_params, "return_logprob": True}
                async with session.post(url, json=body) as response:
                    answer = await response.json()
                meta = answer["meta_info"]
                entries = meta["output_token_logprobs"]
                ids, logprobs = [one[1] for one in entries], [one[0] for one in entries]
                sample.append_response_tokens(args, tokens=ids, log_probs=logprobs, meta_info=meta, text=answer["text"])
                expression = task.parse_call(answer["text"])
                if expression is None or sample.status.value != "completed":
                    break
                await asyncio.sleep(self.tool_seconds if sample.metadata.get("slow") else 0)
                if state.aborted and self.heed_abort:
                    sample.status = type(sample).Status.ABORTED
                    break
                result = (
                    f"\n<|im_start|>user\n<tool_response>\n{task.calculate(expression)}\n</tool_response><|im_end|>\n"
                )
                tokens = encode(result + "<|im_start|>assistant\n", add_special_tokens=False)
                sample.append_response_tokens(args, tokens=tokens, trainable=False)
        sample.reward = float(answer["text"].startswith(f"The answer is {sample.label}."))
        return sample


def generate_of(by_hand: MinimalGenerate) -> Any:
    async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        return await by_hand(args, sample, sampling_params)

    return generate


def test_rollout_with_a_minimal_function(slime_world: SlimeWorld, routed: Routed) -> None:
    world = slime_world
    world.configure(generate_of(MinimalGenerate()))
    batch = world.step()
    check_batch(batch, rollouts=16)
    assert sum(check_witnessed(batch.samples, world.wire.generates).values()) == sum(
        len(one.sampled) for one in world.wire.generates
    )
    check_rescored(batch.samples, routed.workers[0].url)
    assert 0 < sum(batch.train["raw_reward"]) < 16


@pytest.mark.parametrize("heed", [True, False])
@pytest.mark.timing
def test_function_that_ignores_the_abort_is_detected(slime_world: SlimeWorld, heed: bool) -> None:
    world = slime_world
    prompts = world.prompts(mark=lambda number: {"slow": number >= 2})
    flags = ["--over-sampling-batch-size", 6, "--prompt-data", prompts]
    world.configure(generate_of(MinimalGenerate(heed, 2.0)), *flags, groups=2, samples=2)
    batch = world.step()
    late = [one for one in world.wire.generates if one.at > world.aborted_at + 0.1]
    assert bool(late) is not heed
    assert batch.since_abort < 3.0 if heed else batch.since_abort > 1.0
