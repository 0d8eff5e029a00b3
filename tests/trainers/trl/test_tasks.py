"""Prompts as tasks: TRL passes only prompts, each as often as it needs completions."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from datasets import Dataset

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import Task
from strands_sglang.trainers.trl.tasks import Plan, TaskFinder

ROWS = [{"prompt": f"What is {number}?", "answer": number, "level": "easy"} for number in range(4)]


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def test_equal_prompts_are_samples_of_one_task() -> None:
    one, two = Task("one"), Task("two")
    plan = Plan.of([one] * 4 + [two] * 4)
    assert plan.tasks == [one, two] and plan.samples == 4
    assert plan.slots == [(task.id, sample) for task in (one, two) for sample in range(4)]


def test_every_prompt_gets_its_own_sample() -> None:
    dice = random.Random(3)
    for _ in range(200):
        tasks = [Task(str(number)) for number in range(dice.randint(1, 5))]
        prompt_tasks = [task for task in tasks for _ in range(dice.choice([1, 2, 4, 6, 8]))]
        dice.shuffle(prompt_tasks)
        plan = Plan.of(prompt_tasks)
        by_id = {task.id: task for task in plan.tasks}
        assert len(by_id) == len(plan.tasks)
        assert Counter(plan.slots).most_common(1)[0][1] == 1, "two prompts share an episode"
        assert len(plan.slots) == len(prompt_tasks) == len(plan.tasks) * plan.samples, "no episode without a prompt"
        for task, (id, sample) in zip(prompt_tasks, plan.slots, strict=True):
            assert by_id[id].prompt == task.prompt and 0 <= sample < plan.samples


def test_partial_groups_use_the_largest_common_size() -> None:
    plan = Plan.of([Task("one")] * 8 + [Task("two")] * 4)
    assert plan.samples == 4 and len(plan.tasks) == 3


def test_different_tasks_with_one_id_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="got two with the id 'x'"):
        Plan.of([Task("one", id="x"), Task("two", id="x")])


@pytest.mark.parametrize("dataset", [ROWS, Dataset.from_list(ROWS)], ids=["list", "Dataset"])
def test_task_is_the_row_with_the_prompt(dataset: Any) -> None:
    (task,) = TaskFinder().find(["What is 2?"], dataset)
    assert task == Task("What is 2?", 2, {"level": "easy"})


def test_tasks_in_a_dataset_are_restored() -> None:
    tasks = [Task(f"Is {n}?", answer=n, data={"limit": n}, id=f"t{n}") for n in range(3)]
    dataset = Dataset.from_list([task.to_dict() for task in tasks])
    assert TaskFinder().find([task.prompt for task in tasks], dataset) == tasks


def test_single_user_message_is_the_prompt() -> None:
    rows = Dataset.from_list([{"prompt": user(str(row["prompt"])), "answer": row["answer"]} for row in ROWS])
    (task,) = TaskFinder().find([user("What is 3?")], rows)
    assert (task.prompt, task.answer, task.data) == ("What is 3?", 3, {"messages": user("What is 3?")})


def test_last_user_message_is_the_prompt_and_the_rest_is_data() -> None:
    talk = [{"role": "system", "content": "Be brief."}, *user("Hello?")]
    (task,) = TaskFinder().find([talk], [{"prompt": talk, "level": 1}])
    assert (task.prompt, task.data) == ("Hello?", {"level": 1, "messages": talk})


@pytest.mark.parametrize(
    "prompt",
    [[{"role": "user", "content": [{"type": "image"}]}], [{"role": "assistant", "content": "Hello."}], [], 7],
    ids=["image", "assistant", "empty", "number"],
)
def test_prompt_without_a_text_question_is_refused(prompt: Any) -> None:
    with pytest.raises(ConfigurationError, match="tasks=lambda prompt"):
        TaskFinder().find([prompt], [{"prompt": prompt}])


def test_custom_task_function() -> None:
    prompt = [{"role": "system", "content": "Be brief."}, *user("Hello?")]
    finder = TaskFinder(lambda given: Task(given[-1]["content"], data={"system": given[0]["content"]}))
    (task,) = finder.find([prompt], None)
    assert task == Task("Hello?", data={"system": "Be brief."})


def test_different_rows_with_one_prompt_are_refused() -> None:
    twins = [*ROWS, dict(ROWS[1])]
    assert TaskFinder().find(["What is 1?"], twins)[0].answer == 1
    with pytest.raises(ConfigurationError, match="two different rows with 'What is 1"):
        TaskFinder().find(["What is 1?"], [*twins, {**ROWS[1], "answer": 5}])


def test_prompt_is_found_in_one_of_several_datasets() -> None:
    found = TaskFinder().find(["What is 3?", "What is 0?"], {"a": ROWS[:2], "b": ROWS[2:]})
    assert [task.answer for task in found] == [3, 0]


def test_prompt_without_a_row_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    finder = TaskFinder()
    assert finder.find(["Who?", "Who?", "Where?"], iter(ROWS)) == [Task("Who?"), Task("Who?"), Task("Where?")]
    assert finder.find(["Why?"], None) == [Task("Why?")]
    assert [record.message.count("not in the trainer's dataset") for record in caplog.records] == [1]
