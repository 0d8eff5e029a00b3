"""The checks of a setup, listed in `catalogue`: a run makes the quick ones before it starts, `doctor` makes all."""
