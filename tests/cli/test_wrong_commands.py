"""Wrong command lines: the first line says what is wrong, the next what to do or to type."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strands_sglang.cli._wording import in_options
from strands_sglang.cli.commands import doctor, rollout
from strands_sglang.cli.main import main

RUN = ["rollout", "tasks.jsonl", "--agent", "my_agent:build", "--tokenizer", "T", "-d", "run"]
URL = ["--base-url", "http://127.0.0.1:9"]
HELP = "try: strands-sglang rollout --help"
CLIENT = (
    "api_key, connect_timeout, deadline, first_contact, headers, max_connections, max_retries, max_retry_delay, "
    "retry_delay, sampling_names, session_cache, timeout, worker_hosts"
)

JSON = """write '{"name": 1}', with single quotes around it and double quotes within"""
AGENT = "--agent must be MODULE:FUNCTION, such as my_agent:build, got"

WRONG = [
    (["rolout"], "there is no command 'rolout'", "did you mean 'rollout'?"),
    (["rollout"], "missing argument 'TASKS'", HELP),
    (["rollout", "tasks.jsonl"], "missing option '--agent'", HELP),
    (
        [*RUN, *URL, "--max-tokens", "5"],
        "no such option '--max-tokens'. (Did you mean one of: '--max-episode-tokens', '--max-new-tokens', "
        "'--max-turns'?)",
        HELP,
    ),
    (RUN, "--base-url must be given, such as http://localhost:30000", HELP),
    (
        ["rollout", "nothing.jsonl", *RUN[2:], *URL],
        "TASKS must be a JSON Lines file, got 'nothing.jsonl': No such file or directory",
        HELP,
    ),
    (
        ["rollout", "broken.jsonl", *RUN[2:], *URL],
        "broken.jsonl, line 1: Extra data: line 1 column 3 (char 2)",
        "each line must be a JSON object with 'prompt', or a JSON string",
    ),
    ([*RUN, *URL, "--max-turns", "0"], "--max-turns must be an int >= 1, got 0", HELP),
    ([*RUN, *URL, "--metrics-interval", "0"], "--metrics-interval must be a number > 0, got 0.0", HELP),
    ([*RUN, *URL, "--reward-timeout", "-1"], "--reward-timeout must be a number > 0, got -1.0", HELP),
    (
        [*RUN, *URL, "--stop-after-groups", "0"],
        "invalid value for '--stop-after-groups': 0 is not in the range x>=1",
        HELP,
    ),
    ([*RUN, *URL, "--temperature", "x"], "invalid value for '--temperature': 'x' is not a valid number", HELP),
    ([*RUN, *URL, "--temperature", "-1"], "invalid value for '--temperature': -1.0 is not in the range x>=0", HELP),
    ([*RUN, *URL, "-n", "8x"], "invalid value for '-n' / '--samples-per-task': '8x' is not a valid integer", HELP),
    (
        [*RUN, *URL, "--progress", "lives"],
        "invalid value for '--progress': 'lives' is not one of 'auto', 'live', 'lines', 'none'",
        HELP,
    ),
    (
        [*RUN, *URL, "--min-samples-per-task", "3"],
        "--min-samples-per-task must be at most --samples-per-task (1), got 3",
        HELP,
    ),
    (
        [*RUN, *URL, "--client-options", '{"max_conections": 3}'],
        "--client-options has no 'max_conections'",
        f"did you mean 'max_connections'? Known: {CLIENT}",
    ),
    ([*RUN, *URL, "--client-options", '{"timeout": "x"}'], "timeout must be a number > 0, got 'x'", HELP),
    (
        [*RUN, *URL, "--client-options", "[1"],
        "invalid value for '--client-options': not JSON: Expecting ',' delimiter: line 1 column 3 (char 2)",
        JSON,
    ),
    (
        [*RUN, *URL, "--model-options", '{"base_url": "x"}'],
        "--model-options must contain settings of the model only, got 'base_url'",
        HELP,
    ),
    (
        [*RUN, "--base-url", "localhost:9"],
        "--base-url must look like http://localhost:30000 (with http://), got 'localhost:9'",
        HELP,
    ),
    ([*RUN, *URL, "--filter", "keep"], "--filter must be MODULE:FUNCTION, such as my_agent:keep, got 'keep'", HELP),
    (
        ["rollout", "tasks.jsonl", "--agent", "my_agent:biuld", *RUN[4:], *URL],
        "--agent: module my_agent has no function 'biuld'",
        "did you mean 'build'?",
    ),
    (
        ["rollout", "tasks.jsonl", "--agent", "my_agnt:build", *RUN[4:], *URL],
        "--agent: cannot import 'my_agnt': No module named 'my_agnt'",
        "run the command in the directory of the module, or set PYTHONPATH",
    ),
    (
        [*RUN, *URL, "--client", "my_agent:build"],
        "--client must not be given together with --base-url or --client-options",
        HELP,
    ),
    (
        [*RUN, *URL, "--tracker", "wand"],
        "--tracker must be one of 'wandb', 'mlflow', 'tensorboard', or an object with begin, log and end, got 'wand'",
        HELP,
    ),
    (
        ["eval"],
        "TASKS must be given, or --recorded with the directory of a run",
        "try: strands-sglang eval --help",
    ),
    (
        [*RUN, *URL, "--sampling-params", "{'top_k': 1}"],
        "invalid value for '--sampling-params': not JSON: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)",
        JSON,
    ),
    ([*RUN, *URL, "--agent", "my_agent.py:build"], f"{AGENT} 'my_agent.py:build'", "did you mean 'my_agent:build'?"),
    ([*RUN, *URL, "--agent", "./a/my_agent.py"], f"{AGENT} './a/my_agent.py'", "did you mean 'a.my_agent:build'?"),
    ([*RUN, *URL, "--agent", "my_agent.build"], f"{AGENT} 'my_agent.build'", "did you mean 'my_agent:build'?"),
    (
        [*RUN, *URL, "--tokenizer", "./nowhere"],
        "--tokenizer must be a name, or the folder of a model or tokenizer, got './nowhere', which does not exist",
        HELP,
    ),
    (
        ["verify", "tasks.jsonl"],
        "tasks.jsonl is not the directory of a run: it is a file",
        "try: strands-sglang verify --help",
    ),
    (["completion"], "missing argument '{bash|zsh|fish}'", "try: strands-sglang completion --help"),
    (["show"], "missing argument 'RUN'", "try: strands-sglang show --help"),
    (
        ["verify", "run"],
        "run is not the directory of a run: it does not exist",
        "try: strands-sglang verify --help",
    ),
    (
        ["doctor", *URL, "--tokenizer", "T", "--timeout", "0"],
        "--timeout must be a finite number > 0, got 0.0",
        "try: strands-sglang doctor --help",
    ),
    (
        ["doctor", *URL, "--tokenizer", "T", "--worker-host", "z", "--worker-host", "http://y"],
        "--worker-host must be hosts like '10.0.0.2' or '*.cluster.local', got 'http://y'",
        "leave out http:// and the port",
    ),
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory with an agent and tasks."""
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "Compute 2 + 2."}\n')
    (tmp_path / "broken.jsonl").write_text("2 + 2\n")
    (tmp_path / "my_agent.py").write_text("def build(task, model): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_agent", raising=False)
    yield
    sys.modules.pop("my_agent", None)  # other tests have one of the same name


def told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    try:
        code: object = main(arguments)
    except SystemExit as exit:
        code = exit.code
    printed = capsys.readouterr()
    assert code == 2 and not printed.out
    return [line for line in printed.err.splitlines() if not line.startswith("[transformers]")]


@pytest.mark.parametrize(("arguments", "wrong", "todo"), WRONG, ids=[" ".join(one[0][-2:]) for one in WRONG])
def test_what_is_wrong_and_what_to_type(
    arguments: list[str], wrong: str, todo: str, project: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(arguments, capsys) == [f"strands-sglang: {wrong}", f"  {todo}"]


def test_a_list_of_values_is_an_option_that_can_be_repeated() -> None:
    advice = "the API key is not sent there: if it is yours, pass SGLangClient(worker_hosts=['10.0.0.2', 'b'])"
    assert in_options(advice, doctor.command).endswith("pass --worker-host 10.0.0.2 --worker-host b")
    told = in_options(advice, rollout.command)
    assert told.endswith("""pass --client-options '{"worker_hosts": ["10.0.0.2", "b"]}'""")


def test_nothing_listens_there(project: None, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = str(Path(__file__).parents[2] / "lab" / "tool_policy" / "canonical")
    arguments = [*RUN[:5], tokenizer, *RUN[6:], *URL, "--client-options", '{"first_contact": 0.1}']
    assert told(arguments, capsys) == [
        "strands-sglang: could not connect to http://127.0.0.1:9: Connection refused",
        "  nothing ever answered at http://127.0.0.1:9: is the server running there, and is --base-url right (host, "
        "port, http or https)? it should answer GET /health; to wait for a server that is still starting, pass "
        "--client-options '{\"first_contact\": 600}'",
    ]
