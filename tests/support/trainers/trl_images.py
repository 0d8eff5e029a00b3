"""What TRL's trainer does with a rollout function's output, read from its own source.

    python trl_images.py      # in TRL's environment

Prints one line of JSON: the code of the branch that calls the rollout function, and what follows from it.
"""

from __future__ import annotations

import inspect
import json
import textwrap

import trl
from trl import GRPOTrainer


def main() -> None:
    generate = textwrap.dedent(inspect.getsource(GRPOTrainer._generate))
    branch = generate.partition("output = self.rollout_func(")[2].partition("else:")[0]
    score = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    found = {
        "version": trl.__version__,
        "no_images": "images = None" in branch and "multimodal_fields = {}" in branch,
        "required": [name for name in ("prompt_ids", "completion_ids", "logprobs") if f'"{name}"' in branch],
        "dataset_images": "images = dataset_images" in score,
        "rendered_without_the_agent": "apply_chat_template(" in score,
        "sets": any(word in score for word in ("sampling_mask", "top_p_token", "sample_support")),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
