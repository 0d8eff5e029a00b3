"""An agent that looks at images of its task and of its tool, and the scripted engine it runs on."""

from __future__ import annotations

import re
from typing import Any

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from strands_sglang import SGLangModel
from strands_sglang.engine import Generation
from strands_sglang.ledger.files import file_digest
from strands_sglang.runs import Task
from support.pictures import PROCESSOR, image_block, png
from support.rollout.scripts import PromptEngine
from support.scripted_engine import Answer

OPTIONS: dict[str, Any] = {"image_processor": PROCESSOR, "enable_thinking": False}
CALL = "<tool_call>\n<function=look>\n<parameter=place>\n{}\n</parameter>\n</function>\n</tool_call>"
TASKS = [Task([image_block(png(140, 84, 1)), {"text": "What is it?"}], id="a"), Task([{"text": "Look twice."}], id="b")]
SEEN: list[int] = []


@tool
def look(place: int) -> dict[str, Any]:
    """Look somewhere.

    Args:
        place: Where to look.
    """
    SEEN.append(place)
    return {"status": "success", "content": [{"text": f"view {place}"}, image_block(png(64, 96, place))]}


def build(task: Task, model: SGLangModel) -> Any:
    return Agent(model=model, tools=[look], callback_handler=None, conversation_manager=NullConversationManager())


def looks(prompt: str, before: int) -> Answer:
    done = len(re.findall(r"view \d", prompt))
    return CALL.format(done + 1) if done < 2 else "I have seen it."


class ImageEngine(PromptEngine):
    """An engine that checks the images it is sent."""

    def __reduce__(self) -> Any:
        return ImageEngine, (self.by_prompt, self.family, self.context)

    async def generate(self, input_ids: Any, sampling_params: Any = None, **asked: Any) -> Generation:
        images = asked.get("images", ())
        pad = self.tokenizer.convert_tokens_to_ids("<|image_pad|>")
        assert sum(image.positions for image in images) == list(input_ids).count(pad)
        assert all(file_digest(image.png) == image.digest for image in images)
        return await super().generate(input_ids, sampling_params, **asked)


def engine() -> ImageEngine:
    return ImageEngine(looks, "qwen3.5")
