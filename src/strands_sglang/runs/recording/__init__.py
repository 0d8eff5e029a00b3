"""Records everything an episode receives from its engine, its tools and other models, and replays it.

`recorder.py` is the proxy between an episode and its engine, `tool_recorder.py` the one for its tools, and
`other_models.py` the one for other models, such as a simulated user. `event_log.py` writes events, `event_data.py`
converts answers and results to event payloads and back, `replay_log.py` returns recorded answers again.
`pausable_engine.py` samples turns that can be interrupted by a pause, `clock.py` measures time without engine outages.
"""
