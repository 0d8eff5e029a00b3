"""Script that prints the layout of a Python installation as JSON; passed as text to the sandbox's interpreter.

It uses only the standard library. The requirements of the distributions named as arguments are followed.
"""

import json
import os
import re
import sys
from importlib import metadata


def distribution_paths(names: "list[str]") -> "tuple[list[str], list[str]]":
    """Return the top-level files and directories of distributions, and the names that are not installed."""
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
    return sorted(roots), sorted(set(missing) & wanted)  # a requirement with a marker may be missing


def main() -> None:
    """Print the layout."""
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
