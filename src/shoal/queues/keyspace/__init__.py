"""A model of Redis' keys that runs the scripts of queues in this process, without a server.

`shoal.testing` gives users queues on it, and the simulator's servers use it. The same random operations are run on it
and on a real server (tests/lab/sim/test_model_scripts.py).

    keys.py          the keys of one server; strings and streams
    collections.py   lists, hashes, sorted sets and sets
    scripts.py       Lua scripts on the keys
    resp.py          replies as bytes, and bytes as commands
"""
