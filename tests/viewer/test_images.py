"""Images in the viewer: served by digest, shown as they were sent, and embedded in exported files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from strands import Agent, tool

from strands_sglang import SGLangModel
from strands_sglang.ledger.files import file_digest
from strands_sglang.runs import Task
from strands_sglang.viewer.export import export_html
from strands_sglang.viewer.server import RunViewer, create_app
from support.families import tokenizer
from support.pictures import image_block, png
from support.rollout.scripts import PromptEngine, run
from support.scripted_engine import Answer

FAMILY = "qwen3.5"
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 16,
    "merge_size": 2,
    "size": {"shortest_edge": 3136, "longest_edge": 200704},
}
SHOWN, RETURNED = png(64, 64, 1), png(64, 64, 2)


@tool
def look() -> Any:
    """Look."""
    return {"status": "success", "content": [{"text": "see"}, image_block(RETURNED)]}


def build(task: Task, model: SGLangModel) -> Any:
    return Agent(model=model, tools=[look], callback_handler=None)


def script(prompt: str, before: int) -> Answer:
    call = "<tool_call>\n<function=look>\n</function>\n</tool_call>"
    return "It is red." if "<tool_response>\nsee" in prompt else call


@pytest.fixture
async def recorded(tmp_path: Path) -> Path:
    task = Task([image_block(SHOWN), {"text": "What is it?"}], id="look")
    options: dict[str, Any] = {"image_processor": PROCESSOR, "enable_thinking": False}
    await run(build, [task], PromptEngine(script, FAMILY), tmp_path / "run", **options)
    return tmp_path / "run"


async def test_images_are_served_by_digest(recorded: Path) -> None:
    app = create_app(RunViewer(recorded, tokenizer(FAMILY)))
    async with TestClient(TestServer(app, host="127.0.0.1")) as client:
        for data in (SHOWN, RETURNED):
            async with client.get(f"/api/image?digest={file_digest(data)}") as response:
                assert response.status == 200 and await response.read() == data
                assert response.content_type == "image/png"
                assert response.headers["X-Content-Type-Options"] == "nosniff"
        for wrong in ("", "0" * 64, "../run.json", "..%2Frun.json", "ab"):
            async with client.get(f"/api/image?digest={wrong}") as response:
                assert response.status != 200
        async with client.get("/api/episode?id=look/0") as response:
            view = await response.json()
    items = [item for turn in view["turns"] for row in turn["rows"] for item in row["items"]]
    shown = [digest for item in items for digest in item.get("images", ())]
    assert shown == [file_digest(SHOWN), file_digest(RETURNED)]


async def test_a_file_that_was_changed_is_not_served(recorded: Path) -> None:
    digest = file_digest(SHOWN)
    (recorded / "files" / digest[:2] / f"{digest[2:]}.png").write_bytes(RETURNED)
    app = create_app(RunViewer(recorded, tokenizer(FAMILY)))
    async with TestClient(TestServer(app, host="127.0.0.1")) as client:
        async with client.get(f"/api/image?digest={digest}") as response:
            assert response.status != 200


async def test_exported_files_have_their_images(recorded: Path, tmp_path: Path) -> None:
    export_html(recorded, tmp_path / "one.html", tokenizer=tokenizer(FAMILY))
    page = (tmp_path / "one.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "img-src data:" in page
