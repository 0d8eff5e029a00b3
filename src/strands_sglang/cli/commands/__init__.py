"""One module per command; each has a `command`. The table of commands is in `cli/main.py`."""
