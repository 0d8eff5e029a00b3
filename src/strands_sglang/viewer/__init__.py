"""The viewer of recorded runs: a local web page, or one HTML file. `view` opens it, `export_html` writes the file.

Invariant: the page is served on this machine only, to those who know its token, until the caller stops it; the run is
never changed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strands_sglang._async import run_async
from strands_sglang._terminal import escape_for_terminal
from strands_sglang.errors import ConfigurationError

if TYPE_CHECKING:
    from strands_sglang.viewer.export import export_html as export_html

__all__ = ["view", "export_html"]


def view(
    directory: str | Path,
    *,
    tokenizer: Any = None,
    port: int = 0,
    browser: bool = True,
    token: str | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Show a recorded run, or a folder of runs, in the browser. Returns after Ctrl-C.

    Args:
        directory: Directory of the run, or a folder with runs, such as the steps of a training. A run that is being
            written is followed.
        tokenizer: The model's tokenizer, or a name or path to load it from; None: the one that run.json names. Without
            a tokenizer, tokens are shown as ids.
        port: Port on 127.0.0.1; 0: any free one.
        browser: Whether to open the page in the default browser.
        token: What a request must present (`?token=`), at least 16 letters and digits; None: a random one.
        ready: Called with the address of the page, with its token, once it can be opened; None: the address is printed.

    Raises:
        LedgerError: The directory contains no run.
        ConfigurationError: The port is taken, or the port or the token is not valid.
    """
    import webbrowser

    from strands_sglang.ledger.folder import is_run
    from strands_sglang.viewer.server import RunViewer, serve
    from strands_sglang.viewer.training_server import TrainingViewer

    if type(port) is not int or not 0 <= port <= 65535:
        raise ConfigurationError(f"port must be an int from 0 to 65535 (0: any free port), got {port!r}")
    folder_of_runs = Path(directory).is_dir() and not is_run(Path(directory))
    viewer: Any = (TrainingViewer if folder_of_runs else RunViewer)(directory, tokenizer, token=token)

    with ExitStack() as files, suppress(KeyboardInterrupt):

        def announce(address: str) -> None:
            if ready is not None:
                ready(address)
            else:
                shown = escape_for_terminal(str(directory))
                print(f"{shown} is shown at {address} (Ctrl-C ends the viewer)", file=sys.stderr, flush=True)
            if browser:
                with suppress(OSError):  # the file cannot be written: the address can still be opened
                    webbrowser.open(files.enter_context(_leading_to(address)))

        run_async(serve(viewer, port=port, ready=announce))


@contextmanager
def _leading_to(address: str) -> Iterator[str]:
    """Yield the address of a file that leads to another address, and that only this user can read.

    Every user of the machine sees the command line of a browser, which therefore must not contain the token. The file
    is in the home directory because browsers that are confined (snap, flatpak) cannot read the temporary one.
    """
    with tempfile.TemporaryDirectory(prefix="strands-sglang-viewer-", dir=Path.home()) as folder:
        page = Path(folder) / "viewer.html"
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">')
        yield page.as_uri()


def __getattr__(name: str) -> Any:
    """Import `export_html`, and with it the server, on first use."""
    if name != "export_html":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from strands_sglang.viewer.export import export_html

    return export_html
