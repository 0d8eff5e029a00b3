"""`Task`: plain JSON data with an id."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs.task import Task

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.text(), PLAIN, st.dictionaries(st.text(), PLAIN, max_size=3))
def test_task_round_trips_through_json(prompt: str, answer: Any, data: dict[str, Any]) -> None:
    task = Task(prompt, answer, data)
    again = Task.of(orjson.loads(orjson.dumps(task.to_dict())))
    assert again == task
    assert Task(prompt, answer, data).id == task.id, "the id is a digest of the content"
    assert "/" not in task.id and len(task.id) == 12


def test_different_content_has_different_id() -> None:
    tasks = [Task("a"), Task("b"), Task("a", answer=1), Task("a", data={"k": 1}), Task([{"text": "a"}])]
    assert len({task.id for task in tasks}) == len(tasks)
    assert Task("a", data={"k": 1, "l": 2}).id == Task("a", data={"l": 2, "k": 1}).id


def test_task_of_task_prompt_and_dict() -> None:
    task = Task("q", id="named")
    assert Task.of(task) is task
    assert Task.of("q") == Task("q")
    row = {"prompt": "q", "answer": 4, "id": "row-1", "level": "hard", "data": {"source": "book"}}
    assert Task.of(row) == Task("q", 4, {"source": "book", "level": "hard"}, "row-1")


@pytest.mark.parametrize("bad", [7, None, ["q"], {"question": "q"}])
def test_invalid_task_is_rejected(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="a task must be a Task, a str, or a dict"):
        Task.of(bad)


def test_task_that_is_not_json_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="plain JSON data"):
        Task("q", answer={1, 2})
    with pytest.raises(ConfigurationError, match="plain JSON data"):
        Task("q", data={"model": object()})
    with pytest.raises(ConfigurationError, match="without '/'"):
        Task("q", id="a/b")
