"""`strands-sglang serve`: opens sessions for agents that others start, and records them as the episodes of a run.

Invariant: the same command continues an interrupted run. Sessions are opened only for those who have the admin token.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from typing import Any

import click

from strands_sglang.cli import _command as cli
from strands_sglang.cli._run_options import engine_client, model_arguments, model_params
from strands_sglang.errors import ConfigurationError

ADMIN_TOKEN = "STRANDS_SGLANG_ADMIN_TOKEN"  # environment variable: an option would be visible to other users
_LEAST = 16  # characters


def run(
    base_url: str,
    tokenizer: str,
    directory: str | None,
    host: str,
    port: int,
    socket: str | None,
    url: str | None,
    max_sessions: int,
    client_options: dict[str, Any] | None,
    preflight: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Serve sessions to agents that others start, in containers, jobs or other languages. A program opens a session
    over HTTP, gives its address to an agent, and closes it with a reward; the agent's calls in between, in the protocol
    of OpenAI or Anthropic, become the turns of one episode. If the directory has an interrupted run, it is continued.

    The admin token, with which sessions are opened and closed, is read from the environment variable
    STRANDS_SGLANG_ADMIN_TOKEN; without it, a random one is printed. The server's API key is read from
    STRANDS_SGLANG_API_KEY.
    """
    import asyncio

    token = os.environ.get(ADMIN_TOKEN) or secrets.token_urlsafe(24)
    if len(token) < _LEAST:
        raise ConfigurationError(f"{ADMIN_TOKEN} must have at least {_LEAST} characters, got {len(token)}")
    where = {"socket": socket} if socket is not None else {"host": host, "port": port}
    asyncio.run(
        _serve(
            base_url,
            token,
            client_options,
            as_json,
            tokenizer=tokenizer,
            directory=directory,
            gateway={**where, "url": url},
            max_sessions=max_sessions,
            preflight=preflight,
            given=given,
        )
    )
    return 0


async def _serve(
    base_url: str,
    token: str,
    client_options: dict[str, Any] | None,
    as_json: bool,
    *,
    given: dict[str, Any],
    **settings: Any,
) -> None:
    import asyncio

    from strands_sglang._terminal import counted
    from strands_sglang.runs.session_api import session_api
    from strands_sglang.runs.session_service import SessionService
    from strands_sglang.runs.workers.process_tuning import check_open_files, infrequent_gc

    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for one in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(one, ended.set)
    check_open_files(2 * settings["max_sessions"], raise_limit=True)
    async with engine_client(base_url, client_options, settings["max_sessions"]) as client:
        service = SessionService(
            client=client,
            admin=lambda service: session_api(service, token),
            **settings,
            **model_arguments(given, SessionService.__init__),
        )
        async with service:
            with infrequent_gc():
                address = service.gateway.address
                if as_json:
                    print(cli.json_text({"address": address, "admin_token": token}), flush=True)
                else:
                    shown = "of the environment" if os.environ.get(ADMIN_TOKEN) else token
                    print(f"sessions are served at {address}; admin token: {shown}", flush=True)
                    print("press Ctrl-C to end", file=sys.stderr, flush=True)
                await ended.wait()
            left, done = len(service.open_sessions), counted(len(service.ended), "episode")
        cli.tell(f"{done} ended, {left} left unfinished; run the same command to continue")


command = cli.Command(
    "serve",
    callback=run,
    params=[
        cli.option("--base-url", "address of the SGLang server or router", metavar="URL", required=True),
        cli.option("--tokenizer", "the model's tokenizer: a name or path", metavar="NAME", required=True),
        cli.option("-d --directory", "directory of the run (default: nothing is written)", metavar="DIR"),
        cli.option("--host", "address to listen on", default="127.0.0.1", metavar="HOST"),
        cli.option("--port", "port to listen on (0: any free one)", click.IntRange(0, 65535), default=8400),
        cli.option("--socket", "Unix socket to listen on, in place of a port", metavar="PATH"),
        cli.option("--url", "address under which agents reach this gateway, with a balancer's path", metavar="URL"),
        cli.option("--max-sessions", "sessions that may be open at once", cli.POSITIVE, default=1024),
        *model_params(),
        cli.option("--client-options", "further arguments of SGLangClient", cli.json_object, metavar="JSON"),
        cli.option("--preflight/--no-preflight", "check the server before the run", default=True),
        cli.json_option("print the address and the admin token as one JSON object"),
    ],
    exit_codes={
        0: "it was ended with Ctrl-C or SIGTERM",
        2: "invalid arguments, or the server cannot be used",
    },
    examples=[
        "serve --base-url http://localhost:30000 --tokenizer Qwen/Qwen3-8B -d runs/served --max-turns 50",
        "serve --base-url http://localhost:30000 --tokenizer Qwen/Qwen3-8B -d runs/served-a --host 0.0.0.0 \\\n"
        "      --url http://gateways.example/a    # one of several behind a balancer",
    ],
    interrupted="",
)
