"""A model of the cost of a run, measured on one machine and simulated up to 100,000 episodes; `python bench/growth`."""
