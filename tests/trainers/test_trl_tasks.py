"""Prompts as tasks: what a trainer hands over is not more than a prompt, as often as it wants completions."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from datasets import Dataset

from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout import Task
from strands_sglang.trainers.trl_tasks import Plan, TaskFinder

ROWS = [{"prompt": f"What is {number}?", "answer": number, "level": "easy"} for number in range(4)]


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


# --- plans ------------------------------------------------------------------------------------------------------------


def test_prompts_of_one_task_are_samples_of_it() -> None:
    one, two = Task("one"), Task("two")
    plan = Plan.of([one] * 4 + [two] * 4)
    assert plan.tasks == [one, two] and plan.samples == 4
    assert plan.places == [(task.id, sample) for task in (one, two) for sample in range(4)]


def test_any_number_in_any_order_gets_a_sample_of_its_own() -> None:
    dice = random.Random(3)
    for _ in range(200):
        tasks = [Task(str(number)) for number in range(dice.randint(1, 5))]
        wanted = [task for task in tasks for _ in range(dice.choice([1, 2, 4, 6, 8]))]
        dice.shuffle(wanted)
        plan = Plan.of(wanted)
        by_id = {task.id: task for task in plan.tasks}
        assert len(by_id) == len(plan.tasks)
        assert Counter(plan.places).most_common(1)[0][1] == 1, "two prompts share an episode"
        assert len(plan.places) == len(wanted) == len(plan.tasks) * plan.samples, "an episode for nobody"
        for task, (id, sample) in zip(wanted, plan.places, strict=True):
            assert by_id[id].prompt == task.prompt and 0 <= sample < plan.samples


def test_halves_of_groups_make_groups_as_large_as_can_be() -> None:
    plan = Plan.of([Task("one")] * 8 + [Task("two")] * 4)
    assert plan.samples == 4 and len(plan.tasks) == 3


def test_two_tasks_of_one_id_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="two different tasks have the id 'x'"):
        Plan.of([Task("one", id="x"), Task("two", id="x")])


# --- tasks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", [ROWS, Dataset.from_list(ROWS)], ids=["list", "Dataset"])
def test_the_row_with_the_prompt_is_the_task(dataset: Any) -> None:
    (task,) = TaskFinder().find(["What is 2?"], dataset)
    assert task == Task("What is 2?", 2, {"level": "easy"})


def test_tasks_come_back_from_a_dataset_as_they_were() -> None:
    tasks = [Task(f"Is {n}?", answer=n, data={"limit": n}, id=f"t{n}") for n in range(3)]
    dataset = Dataset.from_list([task.to_dict() for task in tasks])
    assert TaskFinder().find([task.prompt for task in tasks], dataset) == tasks


def test_one_user_message_is_a_question() -> None:
    rows = Dataset.from_list([{"prompt": user(str(row["prompt"])), "answer": row["answer"]} for row in ROWS])
    (task,) = TaskFinder().find([user("What is 3?")], rows)
    assert (task.prompt, task.answer, task.data) == ("What is 3?", 3, {"messages": user("What is 3?")})


def test_of_a_conversation_the_last_question_is_asked_and_the_rest_is_there() -> None:
    talk = [{"role": "system", "content": "Be brief."}, *user("Hello?")]
    (task,) = TaskFinder().find([talk], [{"prompt": talk, "level": 1}])
    assert (task.prompt, task.data) == ("Hello?", {"level": 1, "messages": talk})


@pytest.mark.parametrize(
    "prompt",
    [
        [{"role": "user", "content": [{"type": "image"}]}],
        [{"role": "assistant", "content": "Hello."}],
        [],
        7,
    ],
    ids=["image", "assistant", "empty", "number"],
)
def test_what_asks_nothing_in_text_is_refused(prompt: Any) -> None:
    with pytest.raises(ConfigurationError, match="tasks=lambda prompt"):
        TaskFinder().find([prompt], [{"prompt": prompt}])


def test_a_function_of_ones_own_makes_any_task() -> None:
    prompt = [{"role": "system", "content": "Be brief."}, *user("Hello?")]
    finder = TaskFinder(lambda given: Task(given[-1]["content"], data={"system": given[0]["content"]}))
    (task,) = finder.find([prompt], None)
    assert task == Task("Hello?", data={"system": "Be brief."})


def test_rows_of_one_prompt_must_be_the_same() -> None:
    twins = [*ROWS, dict(ROWS[1])]
    assert TaskFinder().find(["What is 1?"], twins)[0].answer == 1
    with pytest.raises(ConfigurationError, match="two rows of the dataset have the prompt 'What is 1"):
        TaskFinder().find(["What is 1?"], [*twins, {**ROWS[1], "answer": 5}])


def test_of_several_datasets_the_one_that_has_it() -> None:
    found = TaskFinder().find(["What is 3?", "What is 0?"], {"a": ROWS[:2], "b": ROWS[2:]})
    assert [task.answer for task in found] == [3, 0]


def test_a_prompt_that_is_nowhere_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    finder = TaskFinder()
    assert finder.find(["Who?", "Who?", "Where?"], iter(ROWS)) == [Task("Who?"), Task("Who?"), Task("Where?")]
    assert finder.find(["Why?"], None) == [Task("Why?")]
    assert [record.message.count("not in the trainer's dataset") for record in caplog.records] == [1]
