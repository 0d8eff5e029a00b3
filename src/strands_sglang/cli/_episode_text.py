"""`show`'s text: a list of episodes, and one episode turn by turn, from the viewer's `episode_view`.

Invariants: everything from a ledger is escaped before it is coloured; line breaks are kept, each line indented by us.
Nothing in a ledger makes it raise: what has another type than declared is left out.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strands_sglang._terminal import counted, escape_for_terminal, table
from strands_sglang.cli._command import Paint, escape_lines, number, shorten

if TYPE_CHECKING:
    from strands_sglang.ledger.record import EpisodeRecord
    from strands_sglang.ledger.summary import SummaryRow
    from strands_sglang.viewer.token_text import TokenTexts

UNFINISHED = "unfinished"  # end reason of an episode that has not ended
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
    "not_needed": ("the run stopped it: it had enough episodes, or the group became too old", ()),
    "paused": ("it was paused and can be resumed", ()),
    "engine_error": ("the engine failed; the same rollout continues it", ()),
    "tool_unavailable": ("a tool was unavailable; the same rollout continues it", ()),
    "other_model_error": ("another model of the episode failed; the same rollout continues it", ()),
    "agent_error": ("the agent's code, or build, raised; the same rollout continues it", ()),
    UNFINISHED: ("it has not ended: it is running, or its process was killed; the same rollout continues it", ()),
}

_LEVELS = ((0.9, "likely"), (0.5, "probable"), (0.1, "possible"), (0.01, "unlikely"))
"""Least probability of a token, and the name of its colour; any other token is "improbable"."""
_LEAST_LOGPROBS = tuple((math.log(least), name) for least, name in _LEVELS)
_METRICS = (
    *("turns", "branches", "tokens", "sampled_tokens", "prompt_tokens", "cached_tokens", "tool_calls", "tool_errors"),
    *("tool_timeouts", "failed_calls", "requests", "replayed_turns", "seconds", "engine_seconds", "tool_seconds"),
    *("other_model_calls", "other_model_seconds"),
)
_FOR_THE_PAGE = {"at", "rows", "reply", "known", "routed_experts"}  # of a step: places in the page's arrays, messages


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping of a record; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def probability_style(logprob: float) -> str:
    """Return the colour of a token by its logprob."""
    return next((name for least, name in _LEAST_LOGPROBS if logprob >= least), "improbable")


def end_style(ended: str) -> str:
    """Return the colour of an end reason."""
    if ended in ("answered", "stopped"):
        return "green"
    return "red" if ended.endswith("_error") else "yellow"


def list_lines(
    name: str,
    rows: Sequence[SummaryRow],
    found: Sequence[SummaryRow],
    most: int | None,
    mixed: Sequence[str],
    paint: Paint,
) -> list[str]:
    """Return a line about all episodes of a run, and a table of those that were found; `most` of them, None: all."""
    ends = Counter(row["end_reason"] or UNFINISHED for row in rows)
    parts = [paint(f"{count:,} {escape_for_terminal(ended)}", end_style(ended)) for ended, count in ends.most_common()]
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    mean = (
        f"; mean reward {number(math.fsum(rewards) / len(rewards))} ({counted(len(rewards), 'episode')})"
        if rewards
        else ""
    )
    start = paint(escape_for_terminal(name), "bold")
    if not rows:
        return [f"{start}  no episodes"]
    lines = [f"{start}  {counted(len(rows), 'episode')}: {', '.join(parts)}{mean}"]
    if mixed:
        sizes = Counter(row["experiment"] for row in rows).most_common()
        counts = " and ".join(f"{count:,}" for _, count in sizes)
        number_of = len({one for experiment, _ in sizes for one in experiment.split("+")})
        lines.append(paint(f"mixed in {', '.join(mixed)}: {counts} episodes of {number_of} experiments", "yellow"))
    if not found:
        return [*lines, "no episode matches"]
    more = 0 if most is None else len(found) - most
    lines += ["", *_table(found[:most], paint)]
    return [*lines, "", f"and {more:,} more: --limit 0 shows all"] if more > 0 else lines


def _table(rows: Sequence[SummaryRow], paint: Paint) -> list[str]:
    cells: list[tuple[str, ...]]
    cells = [("episode", "ended", "reward", "turns", "tokens", "sampled", "tools", "errors", "seconds")]
    for row in rows:
        reward = "failed" if row["reward_error"] else number(row["reward"])
        counts = (row["turns"], row["tokens"], row["sampled_tokens"], row["tool_calls"], row["tool_errors"])
        seconds = "-" if row["end_reason"] is None else f"{row['seconds']:.1f}"
        ended = shorten(row["end_reason"] or UNFINISHED, 40)
        cells.append((shorten(row["id"], 40), ended, reward, *(f"{count:,}" for count in counts), seconds))
    head, *lines = table(cells, right=range(2, 9))
    longest = max(map(len, (head, *lines)))
    room = max(shutil.get_terminal_size((120, 24)).columns - longest - 2, 20)
    found = [paint(f"{head.ljust(longest)}  text", "dim")]
    for row, line, (id, ended, *_) in zip(rows, lines, cells[1:], strict=True):
        at = line.index(ended, len(id))
        coloured = line[:at] + paint(ended, end_style(ended)) + line[at + len(ended) :]
        text = shorten(row["failure"] or row["reward_error"] or row["text"], room)
        found.append(f"{coloured}{' ' * (longest - len(line))}  {text}".rstrip())
    return found


def shown_episode(record: EpisodeRecord, texts: TokenTexts | None) -> dict[str, Any]:
    """Return the facts of `episode_view`, and as `steps` what happened, in order, with the tokens of each turn."""
    from strands_sglang.viewer.episode import episode_view

    view = episode_view(record, texts, max_result=sys.maxsize)
    steps = [{**turn, "kind": "call", "rolled_back": False} for turn in view["turns"]]
    for name, rolled_back in (("rolled_back", True), ("loose", False)):
        steps += [{**turn, "id": turn["turn"], "kind": "call", "rolled_back": rolled_back} for turn in view[name]]
    steps += [{**tool, "kind": "tool"} for tool in view["tools"]]
    steps += [{**said, "kind": "model"} for said in view["other_models"]]
    steps += [{**error, "kind": "call_error"} for error in view["call_errors"]]
    steps += view["others"]
    steps = [{name: step[name] for name in step if name not in _FOR_THE_PAGE} for step in steps]
    arrays_of = {event.number: event.arrays for event in record.events}
    for step in steps:
        if step["kind"] in ("call", "partial_call"):
            arrays = arrays_of[step["event"]]
            ids = list(map(int, arrays.get("sampled", ())))
            pieces = None if texts is None else texts.texts_of(ids)
            step["tokens"] = {"ids": ids, "logprobs": list(arrays.get("logprobs", ())), "texts": pieces}
            added = [int(id) for name in ("closing", "context") for id in arrays.get(name, ())]
            step["added"] = {"ids": added, "text": None if texts is None else "".join(texts.texts_of(added))}
    names = "id task sample fingerprint earlier_fingerprints epoch problems end reward metrics branches".split()
    return {**{name: view[name] for name in names}, "steps": sorted(steps, key=lambda step: int(step["event"]))}


@dataclass(frozen=True, slots=True)
class EpisodePrinter:
    """Prints one episode as lines."""

    paint: Paint
    limits: Mapping[str, Any]
    mixed: Sequence[str]
    """The parts of the experiment in which the episodes of the run differ."""
    longest: int | None
    """Characters of a text after which it is cut; None: it is not."""
    context: bool
    """Whether to print the tokens that were added before each turn."""
    tokens: bool
    """Whether to print a table of the sampled tokens instead of their text."""

    def lines(self, shown: Mapping[str, Any]) -> list[str]:
        """Return the lines of what `shown_episode` returns."""
        task, end = mapping(shown["task"]), mapping(shown["end"])
        ended = str(end.get("end_reason") or UNFINISHED)
        lines = [f"{self._said(shown['id'], 'bold')}  {self._ended(ended)}"]
        lines += self._block("task", _prompt_text(task.get("prompt")))
        if task.get("answer") is not None:
            lines += self._block("answer", json.dumps(task["answer"], ensure_ascii=False))
        for part in self.mixed:
            lines += self._block("mixed", f"{part} {shown['fingerprint'].get(part, 'unknown')}")
            earlier = (parts[part] for parts in shown["earlier_fingerprints"] if part in parts)
            lines += [line for value in earlier for line in self._block("earlier", f"{part} {value}")]
        lines += [*(f"problem  {self._said(problem, 'red')}" for problem in shown["problems"]), ""]
        if self.paint.coloured and not self.tokens:
            levels = [*((f"{least:g} or more", name) for least, name in _LEVELS), ("less", "improbable")]
            legend = "  ".join(self.paint(text, style) for text, style in levels)
            lines += [f"sampled tokens by probability: {legend}", ""]
        for step in shown["steps"]:
            within = step.get("within")
            indent = "  " * len(within) if isinstance(within, list) else ""
            lines += [*(indent + line for line in self._step(step)), ""]
        return [*lines, *self._branches(shown["branches"]), *self._end(shown, end, ended)]

    def _said(self, text: str, *styles: str) -> str:
        return self.paint(escape_for_terminal(text), *styles)

    def _ended(self, ended: str) -> str:
        return self._said(ended, end_style(ended), "bold")

    def _block(self, name: str, text: str, indent: str = "") -> list[str]:
        """Return a text under a name, cut if it is long."""
        cut = text if self.longest is None or len(text) <= self.longest else text[: self.longest]
        first, *rest = escape_lines(cut)
        label = f"{indent}{name:<9}"
        lines = [label + first, *(" " * len(label) + line for line in rest)]
        if len(cut) < len(text):
            more = f"... {counted(len(text) - len(cut), 'more character')} (--full)"
            lines.append(" " * len(label) + self.paint(more, "dim"))
        return lines

    def _step(self, step: Mapping[str, Any]) -> list[str]:
        kind = step["kind"]
        if kind == "tool":
            return self._tool(step)
        if kind == "model":
            return self._other_model(step)
        if kind == "call_error":
            return [self._said(f"engine call failed: {step['error']}: {step['message']}", "red")]
        if kind == "teacher":
            turns = step["turns"] if isinstance(step["turns"], list) else []
            counts = [one[1] for one in turns if isinstance(one, list) and len(one) == 2 and type(one[1]) is int]
            return [self._said(f"teacher  {step['model']} scored {counted(sum(counts), 'sampled token')}", "dim")]
        if kind == "staleness":
            oldest, kept = "unknown" if step["age"] is None else step["age"], step["decision"] == "kept"
            about = f"{step['decision']}: the oldest token of the group has age {oldest}, at most {step['limit']}"
            return [self._said(f"staleness {about}; weights {step['current']}", "dim" if kept else "yellow")]
        if kind == "resume":
            return [self._said(f"resumed by worker {step['worker']}", "magenta")]
        if kind == "rollback":
            return [self._said(f"rolled back to {step['turns']} turns: {step['reason']}", "magenta")]
        return self._turn(step)

    def _turn(self, step: Mapping[str, Any]) -> list[str]:
        kind, tokens, added, detail = step["kind"], step["tokens"], step["added"], mapping(step.get("detail"))
        name = "partial turn" if kind == "partial_call" else f"turn {step['id']}"
        agent = f" {escape_for_terminal(str(detail['agent']))}" if detail.get("agent") else ""
        about = self._said(", ".join(_about_turn(step, detail)), "dim")
        lines = [f"{self._said(name, 'bold', 'cyan')}{agent}  {about}"]
        lines += ["  " + self.paint("rejected by the agent: never trained", "magenta")] if step.get("rejected") else []
        lines += ["  " + self.paint("rolled back", "magenta")] if step.get("rolled_back") else []
        if self.context and kind != "partial_call":
            text = " ".join(map(str, added["ids"])) if added["text"] is None else added["text"]
            lines += [self.paint(line, "dim") for line in self._block("context", text, "  ")]
        lines += ["  " + line for line in (self._token_table(tokens) if self.tokens else self._sampled(tokens))]
        if isinstance(ignored := detail.get("ignored"), list):
            asked = ", ".join(map(str, ignored))
            lines.append("  " + self._said(f"asked for and not honoured, here and later: {asked}", "yellow"))
        failed = detail.get("failed_calls")
        for why in failed if isinstance(failed, list) else ():
            lines.append("  " + self._said(f"malformed tool call, not executed: {why}", "red"))
        if tokens["logprobs"]:
            lines.append("  " + self.paint(_logprob_summary(tokens), "dim"))
        return lines

    def _sampled(self, tokens: Mapping[str, Any]) -> list[str]:
        """Return sampled tokens as lines, each token coloured by its logprob."""
        if not tokens["ids"]:
            return [self.paint("(nothing was sampled)", "dim")]
        if tokens["texts"] is None:
            pairs = zip(tokens["ids"], tokens["logprobs"], strict=False)
            return [" ".join(self.paint(str(id), probability_style(logprob)) for id, logprob in pairs)]
        found, lowest = "", 0.0
        for text, logprob in zip(tokens["texts"], tokens["logprobs"], strict=False):
            lowest = min(lowest, logprob)
            if text:  # otherwise the character ends in a later token
                found += "\n".join(self._said(part, probability_style(lowest)) for part in text.split("\n"))
                lowest = 0.0
        return found.split("\n")

    def _token_table(self, tokens: Mapping[str, Any]) -> list[str]:
        ids, logprobs, texts = tokens["ids"], tokens["logprobs"], tokens["texts"] or [""] * len(tokens["ids"])
        rows = [
            (str(place), str(id), f"{logprob:.4f}", f"{math.exp(min(logprob, 0.0)):.4f}", _quoted(text))
            for place, (id, logprob, text) in enumerate(zip(ids, logprobs, texts, strict=False))
        ]
        head, *lines = table([("token", "id", "logprob", "p", "text"), *rows], right=range(4))
        coloured = [self.paint(line, probability_style(one)) for line, one in zip(lines, logprobs, strict=False)]
        return [self.paint(head, "dim"), *coloured]

    def _tool(self, step: Mapping[str, Any]) -> list[str]:
        outcome, seconds, turns, arguments = step["outcome"], step["seconds"], step["calls"], step["arguments"]
        failed = outcome != "result" or step["status"] == "error"
        about = "error" if outcome == "result" and failed else str(outcome)
        about += f", {seconds:.3g} s" if isinstance(seconds, (int, float)) else ""
        about += f", {counted(turns, 'turn')} inside" if isinstance(turns, int) and turns else ""
        head = self._said(f"tool {step['name']}", "bold", "red" if failed else "blue")
        lines = [f"{head}  {self._said(about, 'dim')}"]
        call = "(not recorded)" if arguments is None else json.dumps(arguments, ensure_ascii=False)
        lines += self._block("call", call, "  ")
        lines += self._block("result", "(not recorded)" if step["text"] is None else step["text"], "  ")
        if step["raised"]:
            place = f" ({step['raised_at']})" if step["raised_at"] else ""
            lines.append("  " + self._said(f"raised   {step['raised']}{place}", "red"))
        return lines

    def _other_model(self, step: Mapping[str, Any]) -> list[str]:
        failed, seconds, attempts = step["text"] is None, step["seconds"], step["attempts"]
        about = f"{seconds:.3g} s" if isinstance(seconds, (int, float)) else ""
        about += f", {counted(attempts, 'attempt')}" if isinstance(attempts, int) and attempts > 1 else ""
        head = self._said(f"model {step['name']}", "bold", "red" if failed else "magenta")
        lines = [f"{head}  {self._said(about, 'dim')}"]
        lines += self._block("asked", "(not recorded)" if step["asked"] is None else step["asked"], "  ")
        if failed:
            return [*lines, "  " + self._said(f"failed   {step['error']}: {step['message']}", "red")]
        return [*lines, *self._block("said", step["text"], "  ")]

    def _branches(self, branches: Iterable[Mapping[str, Any]]) -> list[str]:
        rows = [("turns", "tokens", "trained", "agent", "")]
        for one in (branch for branch in branches if branch["exported"]):
            notes = ["main"] if one["main"] else []
            if one["caller"] is not None:
                notes.append(f"called by turn {one['caller'][0]}")
            if one["forked_from"] is not None:
                notes.append(f"history of turn {one['forked_from']} was rewritten")
            path, trained = shorten(" > ".join(map(str, one["path"])), 60), f"{one['trained_tokens']:,}"
            rows.append((path, f"{one['tokens']:,}", trained, one["agent"] or "", ", ".join(notes)))
        if len(rows) == 1:
            return []
        head, *lines = table([tuple(map(escape_for_terminal, row)) for row in rows], right=(1, 2))
        title = self.paint(counted(len(lines), "branch", "branches"), "bold")
        return [title, "  " + self.paint(head, "dim"), *("  " + line for line in lines), ""]

    def _end(self, shown: Mapping[str, Any], end: Mapping[str, Any], ended: str) -> list[str]:
        meaning, names = WHY.get(ended, ("", ()))
        limits = [f"{name}={self.limits[name]}" for name in names if self.limits.get(name) is not None]
        meaning += f" ({', '.join(limits)})" if limits else ""
        lines = [f"ended    {self._ended(ended)}: {escape_for_terminal(meaning)}"]
        if failure := mapping(end.get("failure")):
            lines.append("         " + self._said(f"{failure.get('kind')}: {failure.get('message')}", "red"))
            lines += ["         " + line for line in escape_lines(str(failure.get("where") or "").rstrip()) if line]
        lines += self._reward(shown["reward"])
        lines += self._block("text", str(end["text"])) if end.get("text") else []
        lines += self._block("stdout", str(end["output"])) if end.get("output") else []
        lines += self._block("stderr", str(end["error_output"])) if end.get("error_output") else []
        metrics = shown["metrics"]
        used = [f"{name}={_number(metrics[name])}" for name in _METRICS if metrics.get(name)]
        used += [f"epoch={shown['epoch']}"] if shown["epoch"] else []
        return [*lines, f"metrics  {escape_for_terminal(', '.join(used) or 'none')}"]

    def _reward(self, reward: Mapping[str, Any] | None) -> list[str]:
        if reward is None:
            return ["reward   not scored"]
        if reward["error"]:
            return ["reward   " + self._said(f"failed: {reward['error']}", "red")]
        lines = [f"reward   {self.paint(_number(reward['value']), 'bold')}"]
        parts, steps = mapping(reward["parts"]), reward["steps"]
        lines += [f"         {escape_for_terminal(str(name))} {_number(value)}" for name, value in parts.items()]
        if isinstance(steps, list) and steps:
            lines.append(f"         by turn: {', '.join(map(_number, steps))}")
        return lines


def _about_turn(step: Mapping[str, Any], detail: Mapping[str, Any]) -> list[str]:
    parts = [counted(len(step["tokens"]["ids"]), "token")]
    if step.get("parent") is not None:
        parts.append(f"after turn {step['parent']}")
    if step.get("join") not in (None, "root", "proved"):
        parts.append("history kept as sampled" if step["join"] == "kept" else str(step["join"]))
    if step.get("purpose") not in (None, "episode"):
        parts.append(str(step["purpose"]))
    if step.get("forked_from") is not None:
        parts.append(f"rewrites the history of turn {step['forked_from']}")
    if step.get("caller"):
        parts.append(f"called by turn {step['caller'][0]}")
    echoes = detail.get("echoes")
    if changed := [str(one) for one in echoes if one != "exact"] if isinstance(echoes, list) else []:
        parts.append(f"copies of replies differ ({', '.join(changed)})")
    sent, cached, latency = step["prompt_tokens"], detail.get("cached_tokens"), detail.get("latency_ms")
    if isinstance(sent, int):
        parts.append(f"prompt {sent:,}" + (f" ({cached / sent:.0%} cached)" if type(cached) is int and sent else ""))
    if isinstance(latency, (int, float)) and math.isfinite(latency):
        parts.append(f"{latency / 1000:.3g} s")
    finish, why = step["finish_reason"], step["finish_detail"]
    parts.append(str(finish) + (f" ({why})" if why is not None and finish != "stop" else ""))
    spans = step["versions"] if isinstance(step.get("versions"), list) else []
    names = dict.fromkeys(str(span[0]) for span in spans if isinstance(span, list) and span and span[0] is not None)
    return [*parts, f"weights {' then '.join(names)}"] if names else parts


def _logprob_summary(tokens: Mapping[str, Any]) -> str:
    logprobs, texts = tokens["logprobs"], tokens["texts"]
    at = min(range(len(logprobs)), key=logprobs.__getitem__)
    text = f" {_quoted(texts[at])}" if texts is not None and at < len(texts) else ""
    return f"logprob mean {math.fsum(logprobs) / len(logprobs):.3f}, lowest {logprobs[at]:.3f} at token {at}{text}"


def _prompt_text(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    blocks = map(mapping, prompt if isinstance(prompt, list) else [])
    return "\n".join(str(block.get("text") or f"[{', '.join(block)}]") for block in blocks)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f") if text.isprintable() else json.dumps(text)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else escape_for_terminal(str(value))
