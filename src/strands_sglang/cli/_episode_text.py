"""`show`'s text: a list of episodes, and one episode turn by turn.

Invariant: everything from a ledger is escaped before it is coloured; line breaks are kept, each line indented by us.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from strands_sglang._terminal import counted, escape_for_terminal, table
from strands_sglang.cli._episode_steps import UNFINISHED, EpisodeView, TokenText, tool_failed
from strands_sglang.cli._output import Paint, escape_lines, number, shorten
from strands_sglang.ledger.summary import SummaryRow

WHY = {
    "answered": ("the agent finished by itself", ()),
    "stopped": ("the agent's own code stopped it: a hook, cancel() or an interrupt", ()),
    "turn_limit": ("it reached its limit of turns", ("max_turns",)),
    "tool_limit": ("it reached its limit of tool calls, or a ToolLimiter stopped it", ("max_tool_calls",)),
    "token_limit": ("it reached its limit of tokens", ("max_episode_tokens", "max_response_tokens")),
    "turn_truncated": ("a turn reached its limit of tokens before it ended", ("max_new_tokens",)),
    "context_length": ("the conversation no longer fits into the context", ("max_context_tokens",)),
    "failed_call": ("a tool call was malformed, and on_failed_call is 'end'", ()),
    "timeout": ("it reached its limit of seconds", ("episode_timeout",)),
    "not_needed": ("the run had enough episodes and stopped it", ()),
    "paused": ("it was paused and can be resumed", ()),
    "engine_error": ("the engine failed; the same rollout continues it", ()),
    "agent_error": ("the agent's code, or build, raised; the same rollout continues it", ()),
    "unfinished": ("it has not ended: it is running, or its process was killed; the same rollout continues it", ()),
}
"""What each end reason means, and the limits that cause it."""

_LEVELS = ((0.9, "likely"), (0.5, "probable"), (0.1, "possible"), (0.01, "unlikely"))
"""Least probability of a token, and the name of its colour; any other token is "improbable"."""
_LEAST_LOGPROBS = tuple((math.log(least), name) for least, name in _LEVELS)


def probability_style(logprob: float) -> str:
    """Return the colour of a token by its logprob."""
    return next((name for least, name in _LEAST_LOGPROBS if logprob >= least), "improbable")


def end_style(ended: str) -> str:
    """Return the colour of an end reason."""
    if ended in ("answered", "stopped"):
        return "green"
    return "red" if ended.endswith("_error") else "yellow"


# --- the list ---------------------------------------------------------------------------------------------------------


def summary_line(name: str, rows: Sequence[SummaryRow], paint: Paint) -> str:
    """Return the line about all episodes of a run.

    Args:
        name: The run's directory.
        rows: Its episodes.
        paint: Colours.
    """
    ends = Counter(row["end_reason"] or UNFINISHED for row in rows)
    parts = [paint(f"{count:,} {escape_for_terminal(ended)}", end_style(ended)) for ended, count in ends.most_common()]
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    mean = f"; mean reward {number(math.fsum(rewards) / len(rewards))} of {len(rewards):,}" if rewards else ""
    start = paint(escape_for_terminal(name), "bold")
    return f"{start}  {counted(len(rows), 'episode')}: {', '.join(parts)}{mean}" if rows else f"{start}  no episodes"


def list_lines(rows: Sequence[SummaryRow], paint: Paint, width: int) -> list[str]:
    """Return a table of episodes.

    Args:
        rows: The episodes; at least one.
        paint: Colours.
        width: Columns of the terminal.
    """
    cells = [("episode", "ended", "reward", "turns", "tokens", "sampled", "tools", "errors", "seconds")]
    cells += [
        (
            shorten(row["id"], 40),
            shorten(row["end_reason"] or UNFINISHED, 40),
            "failed" if row["reward_error"] else number(row["reward"]),
            f"{row['turns']:,}",
            f"{row['tokens']:,}",
            f"{row['sampled_tokens']:,}",
            f"{row['tool_calls']:,}",
            f"{row['tool_errors']:,}",
            "-" if row["end_reason"] is None else f"{row['seconds']:.1f}",
        )
        for row in rows
    ]
    head, *lines = table(cells, right=range(2, 9))
    longest = max(map(len, (head, *lines)))
    room = max(width - longest - 2, 20)
    found = [paint(f"{head.ljust(longest)}  text", "dim")]
    for row, line, (id, ended, *_) in zip(rows, lines, cells[1:], strict=True):
        at = line.index(ended, len(id))
        coloured = line[:at] + paint(ended, end_style(ended)) + line[at + len(ended) :]
        text = shorten(row["failure"] or row["reward_error"] or row["text"], room)
        found.append(f"{coloured}{' ' * (longest - len(line))}  {text}".rstrip())
    return found


# --- one episode ------------------------------------------------------------------------------------------------------


class EpisodePrinter:
    """Prints one episode as lines."""

    def __init__(
        self, paint: Paint, *, limits: Mapping[str, Any], longest: int | None, context: bool, tokens: bool
    ) -> None:
        """Set what is printed.

        Args:
            paint: Colours.
            limits: Limits of the run, by name.
            longest: Characters of a text after which it is cut; None: it is not.
            context: Whether to print the tokens that were added before each turn.
            tokens: Whether to print a table of the sampled tokens instead of their text.
        """
        self._paint, self._limits, self._longest = paint, limits, longest
        self._context, self._tokens = context, tokens

    def lines(self, view: EpisodeView) -> list[str]:
        """Return the lines of an episode."""
        lines = [*self._head(view), ""]
        if self._paint.coloured and not self._tokens:
            levels = [*((f"{least:g} or more", name) for least, name in _LEVELS), ("less", "improbable")]
            legend = "  ".join(self._paint(text, style) for text, style in levels)
            lines += [f"sampled tokens by probability: {legend}", ""]
        for step in view.steps:
            made = self._step(step)
            lines += [*made, ""] if made else []
        return [*lines, *self._branches(view.branches), *self._end(view)]

    def _head(self, view: EpisodeView) -> list[str]:
        paint = self._paint
        lines = [f"{paint(escape_for_terminal(view.id), 'bold')}  {self._ended(view.end_reason)}"]
        lines += self._block("task", view.prompt)
        if view.answer is not None:
            lines += self._block("answer", _json(view.answer))
        lines += [f"problem  {paint(escape_for_terminal(problem), 'red')}" for problem in view.problems]
        return lines

    def _ended(self, ended: str) -> str:
        return self._paint(escape_for_terminal(ended), end_style(ended), "bold")

    def _block(self, name: str, text: str, indent: str = "") -> list[str]:
        """Return a text under a name, cut if it is long."""
        cut = text if self._longest is None or len(text) <= self._longest else text[: self._longest]
        first, *rest = escape_lines(cut)
        label = f"{indent}{name:<9}"
        lines = [label + first, *(" " * len(label) + line for line in rest)]
        if len(cut) < len(text):
            more = f"... {counted(len(text) - len(cut), 'more character')} (--full)"
            lines.append(" " * len(label) + self._paint(more, "dim"))
        return lines

    def _step(self, step: Mapping[str, Any]) -> list[str]:
        within = step.get("within")
        indent = "  " * len(within) if isinstance(within, list) else ""
        kind = step["kind"]
        if kind in ("call", "partial_call"):
            return [indent + line for line in self._turn(step)]
        if kind == "tool":
            return [indent + line for line in self._tool(step)]
        if kind == "call_error":
            text = f"engine call failed: {step.get('error')}: {step.get('message')}"
            return [indent + self._paint(escape_for_terminal(text), "red")]
        if kind == "teacher":
            counts = [turn[1] for turn in step.get("turns") or () if isinstance(turn, list) and len(turn) == 2]
            tokens = counted(sum(count for count in counts if isinstance(count, int)), "sampled token")
            return [self._paint(escape_for_terminal(f"teacher  {step.get('model')} scored {tokens}"), "dim")]
        if kind == "resume":
            return [self._paint(escape_for_terminal(f"resumed by worker {step.get('worker')}"), "magenta")]
        if kind == "rollback":
            text = f"rolled back to {step.get('turns')} turns: {step.get('reason')}"
            return [self._paint(escape_for_terminal(text), "magenta")]
        return []  # the score that counts is printed at the end

    def _turn(self, step: Mapping[str, Any]) -> list[str]:
        paint, tokens = self._paint, step["tokens"]
        name = "partial turn" if step["kind"] == "partial_call" else f"turn {step['turn']}"
        about = [counted(len(tokens.ids), "token")]
        about += [
            text for text in (_place(step), _prompt(step), _seconds(step), _finish(step), _versions(step)) if text
        ]
        head = paint(name, "bold", "cyan") + (f" {escape_for_terminal(step['agent'])}" if step["agent"] else "")
        lines = [f"{head}  {paint(escape_for_terminal(', '.join(about)), 'dim')}"]
        for flag, text in (("rejected", "rejected by the agent: never trained"), ("rolled_back", "rolled back")):
            if step.get(flag):
                lines.append("  " + paint(text, "magenta"))
        if self._context and step.get("context_ids") is not None:
            added = step.get("context_text")
            shown = " ".join(map(str, step["closing_ids"] + step["context_ids"])) if added is None else str(added)
            lines += [paint(line, "dim") for line in self._block("context", shown, "  ")]
        lines += ["  " + line for line in (self._token_table(tokens) if self._tokens else self._sampled(tokens))]
        lines += [
            "  " + paint(escape_for_terminal(f"malformed tool call, not executed: {why}"), "red")
            for why in step["failed_calls"]
        ]
        if tokens.logprobs:
            lines.append("  " + paint(_logprob_summary(tokens), "dim"))
        return lines

    def _sampled(self, tokens: TokenText) -> list[str]:
        """Return sampled tokens as lines, each token coloured by its logprob."""
        if not tokens.ids:
            return [self._paint("(nothing was sampled)", "dim")]
        if tokens.texts is None:
            pieces = [
                self._paint(str(id), probability_style(logprob)) for id, logprob in _pairs(tokens.ids, tokens.logprobs)
            ]
            return [" ".join(pieces)]
        lines: list[str] = []
        line: list[str] = []
        lowest = 0.0
        for text, logprob in _pairs(tokens.texts, tokens.logprobs):
            lowest = min(lowest, logprob)
            if not text:
                continue
            for place, part in enumerate(text.split("\n")):
                if place:
                    lines.append("".join(line))
                    line = []
                line.append(self._paint(escape_for_terminal(part), probability_style(lowest)))
            lowest = 0.0
        return [*lines, "".join(line)]

    def _token_table(self, tokens: TokenText) -> list[str]:
        texts = tokens.texts or [""] * len(tokens.ids)
        rows = [
            (str(place), str(id), f"{logprob:.4f}", f"{math.exp(min(logprob, 0.0)):.4f}", _quoted(text))
            for place, (id, logprob, text) in enumerate(zip(tokens.ids, tokens.logprobs, texts, strict=False))
        ]
        head, *lines = table([("token", "id", "logprob", "p", "text"), *rows], right=range(4))
        coloured = [self._paint(line, probability_style(one)) for line, one in _pairs(lines, tokens.logprobs)]
        return [self._paint(head, "dim"), *coloured]

    def _tool(self, step: Mapping[str, Any]) -> list[str]:
        paint, failed = self._paint, tool_failed(step)
        seconds = step.get("seconds")
        took = f", {seconds:.3g} s" if isinstance(seconds, (int, float)) else ""
        outcome = "error" if step.get("outcome") == "result" and failed else str(step.get("outcome"))
        turns = step.get("calls")
        inside = f", {counted(turns, 'turn')} inside" if isinstance(turns, int) and turns else ""
        head = paint(f"tool {escape_for_terminal(str(step.get('name')))}", "bold", "red" if failed else "blue")
        lines = [f"{head}  {paint(escape_for_terminal(f'{outcome}{took}{inside}'), 'dim')}"]
        arguments = step.get("arguments")
        lines += self._block("call", "(not recorded)" if arguments is None else _json(arguments), "  ")
        lines += self._block("result", _result_text(step.get("result")), "  ")
        if step.get("raised"):
            place = f" ({step['raised_at']})" if step.get("raised_at") else ""
            lines.append("  " + paint(escape_for_terminal(f"raised   {step['raised']}{place}"), "red"))
        return lines

    def _branches(self, branches: Iterable[Mapping[str, Any]]) -> list[str]:
        rows = [("turns", "tokens", "trained", "agent", "")]
        for one in branches:
            if "error" in one:
                return [self._paint(escape_for_terminal(one["error"]), "red"), ""]
            notes = ["main"] if one["main"] else []
            if one["caller"] is not None:
                notes.append(f"called by turn {one['caller'][0]}")
            if one["forked_from"] is not None:
                notes.append(f"history of turn {one['forked_from']} was rewritten")
            path = shorten(" > ".join(map(str, one["turns"])), 60)
            rows.append(
                (path, f"{one['tokens']:,}", f"{one['trained_tokens']:,}", one["agent"] or "", ", ".join(notes))
            )
        if len(rows) == 1:
            return []
        head, *lines = table([tuple(map(escape_for_terminal, row)) for row in rows], right=(1, 2))
        title = self._paint(counted(len(lines), "branch", "branches"), "bold")
        return [title, "  " + self._paint(head, "dim"), *("  " + line for line in lines), ""]

    def _end(self, view: EpisodeView) -> list[str]:
        meaning, names = WHY.get(view.end_reason, ("", ()))
        limits = [f"{name}={self._limits[name]}" for name in names if self._limits.get(name) is not None]
        meaning += f" ({', '.join(limits)})" if limits else ""
        lines = [f"ended    {self._ended(view.end_reason)}: {escape_for_terminal(meaning)}"]
        if view.failure is not None:
            error = f"{view.failure.get('kind')}: {view.failure.get('message')}"
            lines.append("         " + self._paint(escape_for_terminal(error), "red"))
            lines += [
                "         " + line for line in escape_lines(str(view.failure.get("where") or "").rstrip()) if line
            ]
        lines += self._reward(view.reward)
        if view.text:
            lines += self._block("text", view.text)
        used = [f"{name}={_number(view.metrics[name])}" for name in _METRICS if view.metrics.get(name)]
        used += [f"epoch={view.epoch}"] if view.epoch else []
        return [*lines, f"metrics  {escape_for_terminal(', '.join(used) or 'none')}"]

    def _reward(self, reward: Mapping[str, Any] | None) -> list[str]:
        if reward is None:
            return ["reward   not scored"]
        if reward.get("error"):
            return ["reward   " + self._paint(escape_for_terminal(f"failed: {reward['error']}"), "red")]
        lines = [f"reward   {self._paint(_number(reward.get('value')), 'bold')}"]
        parts = reward.get("parts")
        if isinstance(parts, dict):
            lines += [f"         {escape_for_terminal(str(name))} {_number(value)}" for name, value in parts.items()]
        steps = reward.get("steps")
        if isinstance(steps, list) and steps:
            lines.append(f"         by turn: {', '.join(map(_number, steps))}")
        return lines


_METRICS = (
    *("turns", "branches", "tokens", "sampled_tokens", "prompt_tokens", "cached_tokens", "tool_calls", "tool_errors"),
    *("tool_timeouts", "failed_calls", "requests", "replayed_turns", "seconds", "engine_seconds", "tool_seconds"),
)


def _pairs(values: Sequence[Any], logprobs: Sequence[float]) -> Iterable[tuple[Any, float]]:
    return zip(values, logprobs, strict=False)


def _place(step: Mapping[str, Any]) -> str:
    parts = [] if step.get("parent") is None else [f"after turn {step['parent']}"]
    if step.get("join") not in (None, "", "root", "proved"):
        parts.append("history kept as sampled" if step["join"] == "kept" else str(step["join"]))
    if step.get("purpose") not in (None, "", "episode"):
        parts.append(str(step["purpose"]))
    if step.get("forked_from") is not None:
        parts.append(f"rewrites the history of turn {step['forked_from']}")
    if step.get("caller"):
        parts.append(f"called by turn {step['caller'][0]}")
    return ", ".join(parts)


def _prompt(step: Mapping[str, Any]) -> str:
    sent, cached = step["prompt_tokens"], step["cached_tokens"]
    if sent is None:
        return ""
    return f"prompt {sent:,}" + (f" ({cached / sent:.0%} cached)" if cached is not None and sent else "")


def _seconds(step: Mapping[str, Any]) -> str:
    return "" if step["seconds"] is None else f"{step['seconds']:.3g} s"


def _finish(step: Mapping[str, Any]) -> str:
    detail = step["finish_detail"]
    return str(step["finish_reason"]) + (
        f" ({detail})" if detail is not None and step["finish_reason"] != "stop" else ""
    )


def _versions(step: Mapping[str, Any]) -> str:
    names = list(dict.fromkeys(str(span[0]) for span in step["versions"] if span[0] is not None))
    return f"weights {' then '.join(names)}" if names else ""


def _logprob_summary(tokens: TokenText) -> str:
    logprobs = tokens.logprobs
    at = min(range(len(logprobs)), key=logprobs.__getitem__)
    text = f" {_quoted(tokens.texts[at])}" if tokens.texts is not None and at < len(tokens.texts) else ""
    mean = math.fsum(logprobs) / len(logprobs)
    return f"logprob mean {mean:.3f}, lowest {logprobs[at]:.3f} at token {at}{text}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f") if text.isprintable() else json.dumps(text)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _result_text(result: Any) -> str:
    content = result.get("content") if isinstance(result, dict) else None
    if not isinstance(content, list):
        return "(not recorded)" if result is None else _json(result)
    parts = [
        one["text"] if isinstance(one, dict) and isinstance(one.get("text"), str) else _json(one) for one in content
    ]
    return "\n".join(parts)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else escape_for_terminal(str(value))
