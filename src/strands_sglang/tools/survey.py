"""What an interpreter says of itself: sent as text to the Python that the sandbox will use.

It uses nothing of this package and prints one JSON object. Named distributions are followed to all that they require.

    python -I -c SURVEY numpy sympy

Invariant: it only looks; nothing is imported but the standard library.
"""

import json
import os
import re
import sys
from importlib import metadata


def distribution_paths(names: "list[str]") -> "tuple[list[str], list[str]]":
    """Return the files and directories at the top of installed distributions, and the names that are not installed."""
    roots, missing, seen, waiting = set(), [], set(), list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
            continue
        for file in found.files or ():
            top = file.parts[0]
            path = os.path.realpath(str(found.locate_file(top)))
            if top not in ("..", "__pycache__") and not top.endswith(".pth") and os.path.exists(path):
                roots.add(path)
        for line in found.requires or ():
            needed = re.match(r"[A-Za-z0-9._-]+", line)
            if needed and "extra ==" not in line:
                waiting.append(needed[0])
    wanted = {re.sub(r"[-_.]+", "-", name).lower() for name in names}
    return sorted(roots), sorted(set(missing) & wanted)  # what only a marker would require may well be missing


def main() -> None:
    """Print what there is to know."""
    roots, missing = distribution_paths(sys.argv[1:])
    dynload = [path for path in sys.path if os.path.basename(path) == "lib-dynload" and os.path.isdir(path)]
    answer = {
        "executable": os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable),
        "version": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "platlibdir": getattr(sys, "platlibdir", "lib"),
        "stdlib": os.path.realpath(os.path.dirname(os.__file__)),
        "dynload": os.path.realpath(dynload[0]) if dynload else None,
        "packages": roots,
        "missing": missing,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
