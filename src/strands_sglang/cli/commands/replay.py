"""`strands-sglang replay`: runs recorded episodes again through the agent's code, without an engine.

Invariant: the exit code is 0 only if at least one episode was replayed and all are identical.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strands_sglang.cli import _command as cli
from strands_sglang.errors import LedgerError

if TYPE_CHECKING:
    from strands_sglang.runs import ReplayResult

IDENTICAL, DIFFERENT, NOTHING = 0, 1, 3  # exit codes: all trajectories are identical; some are not; none to replay

_MAX_DIFFERENCES = 10  # kinds of difference to list


def run(
    directory: str,
    agent: str,
    tokenizer: str | None,
    episode: tuple[str, ...],
    model_options: dict[str, Any] | None,
    limits: dict[str, Any] | None,
    fast: bool,
    as_json: bool,
) -> int:
    """Run recorded episodes again through your agent's code and compare the trajectories. Responses of the engine and
    results of tools come from the ledger; no request is sent and no tool is run.
    """
    from strands_sglang import fast_agents
    from strands_sglang._async import run_async
    from strands_sglang.cli._recorded_run import open_run, run_settings, tokenizer_of
    from strands_sglang.ledger.reader import Ledger
    from strands_sglang.runs import ReplayVerdict, replay

    folder, run_file = Path(directory), open_run(directory)
    missing = sorted(set(episode) - set(Ledger(folder).ids() if episode else ()))
    if missing:
        raise LedgerError(f"the ledger in {directory} has no episode {', '.join(map(repr, missing))}")
    name = tokenizer_of(run_file, tokenizer)
    settings = run_settings(run_file, limits, model_options)
    settings.report_left_out()
    build = cli.import_function(agent, "--agent", "my_agent:build")
    with fast_agents() if fast else nullcontext():
        replayed = run_async(
            replay(
                build,
                folder,
                tokenizer=name,
                episodes=list(episode) or None,
                limits=settings.limits,
                **settings.model_options,
            )
        )
    if not replayed:
        cli.tell(f"nothing to replay in {directory}")
        return NOTHING
    for line in _lines(replayed) if not as_json else map(_json, replayed):
        print(line)
    return IDENTICAL if all(one.verdict is ReplayVerdict.IDENTICAL for one in replayed) else DIFFERENT


def _lines(replayed: list[ReplayResult]) -> list[str]:
    """Return the summary as lines of text, with episodes that differ in the same way listed once."""
    from strands_sglang._terminal import counted, escape_for_terminal
    from strands_sglang.runs import ReplayVerdict

    counts = Counter(one.verdict.value for one in replayed)
    summary = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
    lines = [f"{counted(len(replayed), 'episode')}: {summary} (results from the ledger; no tool was run)"]
    differing: dict[tuple[str, str], list[ReplayResult]] = {}
    for one in replayed:
        if one.verdict is not ReplayVerdict.IDENTICAL:
            differing.setdefault((one.verdict.value, one.why), []).append(one)
    groups = sorted(differing.items(), key=lambda group: -len(group[1]))
    for (verdict, why), group in groups[:_MAX_DIFFERENCES]:
        first = group[0]
        place = "" if first.event is None else f", event {first.event}"
        lines.append(f"  {len(group):,} {verdict}: {why}")
        lines.append(f"    {'first: ' if len(group) > 1 else ''}episode {first.id}{place}")
        if (difference := first.difference) is not None:
            lines.append(f"    from token {difference.token} on, after {_quote(difference.before)}")
            lines.append(f"    recorded: {_quote(difference.recorded)}")
            lines.append(f"    now:      {_quote(difference.now)}")
    if len(groups) > _MAX_DIFFERENCES:
        others = counted(len(groups) - _MAX_DIFFERENCES, "other difference")
        lines.append(f"  and {others}: see --json")
    return [escape_for_terminal(line) for line in lines]


def _quote(text: str) -> str:
    return f'"{text}"'.replace("\n", "\\n") if text else "(end of the prompt)"


def _json(one: ReplayResult) -> str:
    return cli.json_text(
        {
            "episode": one.id,
            "verdict": one.verdict.value,
            "event": one.event,
            "message": one.message,
            "difference": None if one.difference is None else one.difference.to_dict(),
        }
    )


command = cli.Command(
    "replay",
    callback=run,
    params=[
        cli.run_argument(),
        cli.function_option("--agent", "build function, as for rollout()", required=True),
        cli.tokenizer_option(),
        cli.episode_option(),
        cli.option(
            "--model-options",
            "model options, as for rollout() (default of each: the value in run.json, if it is plain data)",
            cli.json_object,
            metavar="JSON",
        ),
        cli.option(
            "--limits", "limits, as for rollout() (default: those in run.json)", cli.json_object, metavar="JSON"
        ),
        cli.flag(
            "--fast-agents fast",
            "replay inside fast_agents(), as rollout() runs: needed for episodes of more than about 300 turns",
        ),
        cli.json_option("print one JSON object per episode and line"),
    ],
    exit_codes={
        0: "all trajectories are identical",
        1: "some trajectories differ",
        2: "invalid arguments, or no such run or episode",
        3: "there was nothing to replay",
    },
    examples=[
        "replay runs/first --agent my_agent:build",
        "replay runs/first --agent my_agent:build --tokenizer Qwen/Qwen3-8B --episode task-7/0 --json",
    ],
)
