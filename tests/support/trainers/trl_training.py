"""The training of `examples/trl_calculator` with what a test adds: another model in its episodes, and old weights.

    python tests/support/trainers/trl_training.py --models URL --max-staleness 0 --steps 2 --groups 1 ...

`--models`: the address of a simulated user, whom the reward asks too. `--max-staleness`: the limit; older tokens are
masked. In the second step, the first tool call puts the weights of the first step back, as another process might. Other
options are the example's.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "examples" / "trl_calculator")]

from strands import Agent, tool  # noqa: E402

from strands_sglang import SGLangClient  # noqa: E402
from strands_sglang.runs import MaxStaleness  # noqa: E402
from strands_sglang.trainers.trl import trl_rollout  # noqa: E402
from support.user_simulation import SETTINGS, build, user_on  # noqa: E402

train: Any = importlib.import_module("train")  # the example's; for mypy, the lab has one too
SAMPLES = 8
"""Of a group, in the example."""


class OldWeights:
    """Gives the engine the version of the first step again, in the second."""

    def __init__(self, url: str, model: str) -> None:
        self.url, self.model = url, model
        self.began = 0
        self.versions: list[str | None] = []

    async def begin(self) -> None:
        """Note an episode, and the version of its step."""
        self.began += 1
        if self.began % SAMPLES == 1:
            async with SGLangClient(self.url) as client:
                self.versions += (await client.control.weight_versions()).values()

    async def come_back(self) -> None:
        if len(self.versions) != 2:
            return
        name = self.versions[0]
        self.versions.append(name)
        async with SGLangClient(self.url) as client:
            (result,) = await client.control.swap_weights(self.model, version=str(name))
        assert result.ok, result.message


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--max-staleness", type=int, required=True)
    given, rest = parser.parse_known_args()
    sys.argv[1:] = ["--url", given.url, "--model", given.model, *rest]
    weights = OldWeights(given.url, given.model)

    @tool
    async def calculator(expression: str) -> str:
        """Work out one operation on two whole numbers.

        Args:
            expression: Such as `615 * 17`.
        """
        await weights.come_back()
        return str(train.arithmetic.calculate(expression))

    async def conversation(task: Any, model: Any, models: Any) -> Any:
        await weights.begin()
        return build(task, model, models, tools=[calculator])

    async def judged(episode: Any, models: Any) -> float:
        verdict = await Agent(model=models["user"], callback_handler=None).invoke_async("Compute 1 + 1.")
        return float(len(str(verdict)) + len(episode.text))

    def rollouts(_: Any, **settings: Any) -> Any:
        settings |= {"reward": judged, "limits": SETTINGS["limits"]}
        rule, models = MaxStaleness(given.max_staleness, "mask"), {"user": user_on(given.models, "sglang")}
        return trl_rollout(conversation, **settings, max_staleness=rule, models=models)

    def config(**settings: Any) -> Any:
        return GRPOConfig(**{**settings, "max_completion_length": 900})

    GRPOConfig = train.GRPOConfig
    train.trl_rollout, train.GRPOConfig = rollouts, config
    train.main()


if __name__ == "__main__":
    main()
