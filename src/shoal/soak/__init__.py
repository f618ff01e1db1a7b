"""Soak runs: the simulator's checks against real processes on real servers, with faults on request.

Owns nothing itself; this is the map. A run has one or more rounds, each with a cluster of its own:

    run.py         a round: cluster, load processes, faults, quiet, verdict; and the sum over rounds
    processes.py   the start and the end of the processes of a round
    shape.py       what a seed makes of a round: channels, placements, publishers, subscribers
    worker.py      a load process: its orders from the run, its log, its life
    publishing.py  the publishers of a load process
    subscribing.py the subscribers of a load process
    faults.py      who is killed when
    corners.py     what a run must have met
    records.py     the lines of the logs
    checker.py     the checking process: reads all logs and judges; it shares no code with the router

Times in logs are `time.monotonic()`, which all processes of a Linux machine share.
"""
