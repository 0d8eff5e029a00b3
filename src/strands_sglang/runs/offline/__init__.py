"""Works on recorded runs without sampling: `replay.py`, `score_run.py`, `template_check.py`."""
