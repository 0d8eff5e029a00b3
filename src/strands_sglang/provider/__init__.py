"""The parts of `SGLangModel`: settings, episodes, and planning, sampling and committing a turn."""
