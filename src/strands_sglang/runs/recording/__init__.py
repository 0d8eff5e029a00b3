"""Records everything an episode receives from its engine and its tools, and replays it.

`recorder.py` is the proxy between an episode and its engine, `tool_recorder.py` the one for its tools. `event_log.py`
writes events, `event_data.py` converts answers and results to event payloads and back, `replay_log.py` returns recorded
answers again. `pausable_engine.py` samples turns that can be interrupted by a pause, `clock.py` measures time without
engine outages.
"""
