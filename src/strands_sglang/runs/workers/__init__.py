"""Where episodes run: in this process (`local`) or in Ray processes (`ray_pool`).

`spec` defines an episode and the settings of a run as data that can be sent to a worker; `process_tuning` adjusts the
process that runs episodes.
"""
