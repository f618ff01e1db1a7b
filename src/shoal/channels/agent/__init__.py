"""The agent: the process beside one server. `core` decides, `session` and `process` are its shell."""
