"""Runs an agent that calls a session: `AgentProcess`, as a process; `RemoteAgent`, elsewhere; and `Gateways`.

Invariant: when `run` returns or raises, no process of the agent is left. If this process dies, they end, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit

from strands.models import Model

from strands_sglang._checks import chosen
from strands_sglang.errors import AgentProcessError, ConfigurationError
from strands_sglang.gateway.server import Gateway
from strands_sglang.gateway.session import IsSide, Session
from strands_sglang.gateway.supervisor import why
from strands_sglang.model import SGLangModel
from strands_sglang.provider.config import RewritePolicy
from strands_sglang.provider.episode import EpisodeTokens
from strands_sglang.tools.bubblewrap import find_bubblewrap
from strands_sglang.tools.process import BoundedOutput

_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))
_OUTPUT = 1 << 20  # bytes of each stream that are kept: half of them the first, half the last
_SHOWN, _SHOWN_ERRORS = 20_000, 2000  # characters of the output and the error output that are recorded: the last ones
_GRACE_SECONDS = 10.0  # that a process has to end by itself after its session has ended
_SECRETS = frozenset({"STRANDS_SGLANG_API_KEY", "STRANDS_SGLANG_ADMIN_TOKEN"})
"""Variables that no agent inherits: with them it could ask the engine itself, or score its own episode."""
_PORT = 28911  # in a network namespace of its own; no server that an agent starts is likely to want it


class Network(str, Enum):
    """What an agent's process can reach."""

    HOST = "host"
    """Everything that this process can."""
    GATEWAY_ONLY = "gateway_only"
    """Nothing but its session: it runs in a network namespace of its own (Linux, needs bubblewrap)."""


class OnResume(str, Enum):
    """What a resumed episode does with the turns that were recorded before."""

    CONTINUE = "continue"
    """The agent's requests are answered from the record for as long as they are the recorded ones."""
    RESTART = "restart"
    """All turns are sampled again, and the recorded ones rolled back: for agents whose tool results never repeat."""


class RemoteAgent(ABC):
    """An agent that calls a session over HTTP, wherever it runs; `build` may return one.

    Example:
        class Job(RemoteAgent):
            async def run(self, session, base_url, socket):
                job = await cluster.start(image="my-agent", env={"OPENAI_BASE_URL": f"{base_url}/v1"})
                return await job.wait()  # its answer
    """

    name: str = "policy"
    """Name of the model that it is told. Calls of unknown models are recorded and not trained; with tools, refused."""
    models: Mapping[str, Model] | None = None
    """Other models that it may ask by name, of those that `build` was given: `{"user": models["user"]}`; None: none."""
    is_side: IsSide | None = None
    """Returns whether a call is not its own work, such as a title: recorded, not trained; None: none is."""
    on_changed_echo: RewritePolicy = RewritePolicy.KEEP
    """What to do if its copy of a reply differs from the reply, but is still its echo."""
    on_resume: OnResume = OnResume.CONTINUE
    """What to do with recorded turns if the episode is resumed."""
    network: Network = Network.HOST
    gateway: Gateway | None = None
    """Serves its session; None: a gateway of the run on the loopback interface, or on a socket for `GATEWAY_ONLY`."""

    @abstractmethod
    async def run(self, session: Session, base_url: str, socket: Path | None) -> str:
        """Run it to its end; return its answer.

        Args:
            session: Answers its calls.
            base_url: Address of the session.
            socket: Unix socket on which the session is served; None: it is served on a port.

        Raises:
            AgentProcessError: It ended with an error.
            StrandsSGLangError: What ended the session, such as a limit of the episode.
        """


@dataclass(frozen=True, slots=True)
class AgentProcess(RemoteAgent):
    """An agent that is a program of its own.

    It finds its session in `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `OPENAI_MODEL`, or in the same for `ANTHROPIC_`.

    Example:
        def build(task, model):
            return AgentProcess(["claude", "-p", task.prompt], network=Network.GATEWAY_ONLY)
    """

    command: Sequence[str]
    prompt: str | None = None
    """Text for its standard input; None: the input is empty."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables beside those of this process, which it inherits, and those of the session."""
    cwd: str | Path | None = None
    """Directory to run it in; None: that of this process."""
    network: Network = Network.HOST
    name: str = "policy"
    models: Mapping[str, Model] | None = None
    is_side: IsSide | None = None
    on_changed_echo: RewritePolicy = RewritePolicy.KEEP
    on_resume: OnResume = OnResume.CONTINUE

    def __post_init__(self) -> None:
        if isinstance(self.command, str) or not self.command or not all(isinstance(one, str) for one in self.command):
            raise ConfigurationError(
                f"AgentProcess.command must be a list of texts, got {self.command!r:.80}; write a shell command as "
                "['sh', '-c', '...']"
            )
        try:
            (self.prompt or "").encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"AgentProcess.prompt must be a text that UTF-8 can hold: {error}") from None
        for name, kind in (("network", Network), ("on_changed_echo", RewritePolicy), ("on_resume", OnResume)):
            object.__setattr__(self, name, chosen(f"AgentProcess.{name}", getattr(self, name), kind))

    async def run(self, session: Session, base_url: str, socket: Path | None) -> str:
        """Run it to its end; return its output."""
        reader, writer = os.pipe()
        with os.fdopen(writer, "wb", buffering=0) as alive:  # the supervisor ends everything when it is closed
            try:
                process = await self._start(session, base_url, socket, reader)
            finally:
                os.close(reader)
            output, errors = BoundedOutput(_OUTPUT), BoundedOutput(_OUTPUT)
            work = asyncio.ensure_future(_communicate(process, self.prompt, output, errors))
            ended = asyncio.ensure_future(session.ended.wait())
            try:
                await asyncio.wait({work, ended}, return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    await asyncio.wait({work}, timeout=_GRACE_SECONDS)
            finally:
                ended.cancel()
                alive.close()
                await asyncio.wait({work})
                session.output = output.text()[-_SHOWN:].strip()
                session.error_output = errors.text()[-_SHOWN_ERRORS:].strip()
        if session.error is not None and (session.ended.is_set() or process.returncode):
            raise session.error
        work.result()
        if process.returncode:
            raise AgentProcessError(
                f"the agent's process ended with exit code {process.returncode}: {session.error_output}",
                exit_code=process.returncode,
            )
        return output.text().strip()

    async def _start(
        self, session: Session, base_url: str, socket: Path | None, life: int
    ) -> asyncio.subprocess.Process:
        where = None if socket is None else str(socket)
        given = json.dumps({"command": [*self.command], "life": life, "socket": where, "port": _PORT})
        with os.fdopen(os.memfd_create("command"), "wb", buffering=0) as file:
            file.write(given.encode())
            file.seek(0)
            command = [sys.executable, "-I", _SUPERVISOR, str(file.fileno())]
            if socket is not None:
                # The files are the host's: this takes away the network, and nothing else.
                bubblewrap = [find_bubblewrap(), "--dev-bind", "/", "/", "--unshare-net", "--die-with-parent", "--"]
                command = [*bubblewrap, *command]
                base_url = f"http://127.0.0.1:{_PORT}{urlsplit(base_url).path}"
            try:
                return await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env={**_inherited(), **_variables(session, base_url), **self.env},
                    cwd=self.cwd,
                    pass_fds=(life, file.fileno()),
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                raise AgentProcessError(f"the agent's process cannot be started: {why(error)}") from error


def _inherited() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _SECRETS}


def _variables(session: Session, base_url: str) -> dict[str, str]:
    direct = ",".join(filter(None, ["127.0.0.1", "localhost", os.environ.get("NO_PROXY")]))
    variables = {"NO_PROXY": direct, "no_proxy": direct}
    for protocol, address in (("OPENAI", f"{base_url}/v1"), ("ANTHROPIC", base_url)):
        variables[f"{protocol}_BASE_URL"] = address
        variables[f"{protocol}_API_KEY"] = session.token
        variables[f"{protocol}_MODEL"] = session.name
    # Names by which Claude Code asks for other models, such as those of its sub-agents; and one for titles and the
    # like, which is not the session's and therefore not trained.
    variables |= {f"ANTHROPIC_DEFAULT_{kind}_MODEL": session.name for kind in ("HAIKU", "SONNET", "OPUS", "FABLE")}
    variables["ANTHROPIC_SMALL_FAST_MODEL"] = f"{session.name}-small"
    return variables


async def _communicate(
    process: asyncio.subprocess.Process, prompt: str | None, output: BoundedOutput, errors: BoundedOutput
) -> None:
    """Write the input of a process and keep its output until it has ended."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    reading = [asyncio.ensure_future(_keep(*one)) for one in ((process.stdout, output), (process.stderr, errors))]
    with suppress(BrokenPipeError, ConnectionResetError):  # it does not read its input
        process.stdin.write((prompt or "").encode())
        await process.stdin.drain()
    process.stdin.close()
    await asyncio.wait(reading)
    await process.wait()


async def _keep(stream: asyncio.StreamReader, output: BoundedOutput) -> None:
    while data := await stream.read(65536):
        output.feed(data)


class Gateways:
    """The gateways of one worker: each is opened when the first agent needs it, and serves all later ones."""

    def __init__(self) -> None:
        self._open: dict[Network, Gateway] = {}
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()

    @asynccontextmanager
    async def session(
        self, agent: RemoteAgent, model: SGLangModel, episode: EpisodeTokens
    ) -> AsyncIterator[tuple[Session, Gateway]]:
        """Open a session for an agent."""
        gateway = agent.gateway or await self._gateway(agent.network)
        async with gateway.session(
            model,
            episode,
            name=agent.name,
            models=agent.models,
            is_side=agent.is_side,
            on_changed_echo=agent.on_changed_echo,
        ) as session:
            yield session, gateway

    async def _gateway(self, network: Network) -> Gateway:
        async with self._opening:
            if network not in self._open:
                socket = None
                if network is Network.GATEWAY_ONLY:
                    folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="strands-sglang-"))
                    socket = Path(folder) / "gateway.sock"
                self._open[network] = await self._stack.enter_async_context(Gateway(socket=socket))
            return self._open[network]

    async def close(self) -> None:
        """Close all gateways."""
        self._open.clear()
        await self._stack.aclose()
