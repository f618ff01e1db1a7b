"""Soak runs: the simulator's checks against real processes on real servers, with faults on request.

Owns nothing itself; this is the map. A run has one or more rounds, each with a cluster of its own:

    rounds.py      what all rounds have in common: cluster, load processes, quiet, verdict
    run.py         rounds with faults, and with moves that are asked for
    balanced.py    rounds with a balancer: the load rises, and it is to cope with it
    outcome.py     what a run is to be, the sum over its rounds, and the facts that are printed
    processes.py   the start and the end of the processes of a round
    shape.py       what a seed makes of a round: channels, placements, publishers, subscribers
    surges.py      the load of rounds with a balancer
    worker.py      a load process: its orders from the run, its log, its life
    publishing.py  the publishers of a load process
    subscribing.py the subscribers of a load process
    watching.py    plain subscribers, and those who overhear control messages, in a process of their own
    faults.py      who is killed when
    schedule.py    when which channel is asked to move
    following.py   writes down how the plan changes
    asking.py      the same, and asks for moves
    observing.py   the same, and writes down what the balancer decides and what servers carry
    carrying.py    what one channel carries on one server, and on several
    ledger.py      what became of each move, and when anything was in motion
    forwarding.py  how many messages agents have forwarded
    corners.py     what a run must have met
    records.py     the lines of the logs
    histogram.py   times in buckets
    balance.py     what the logs say of the balancer
    movements.py   what the logs say of moves: fates, costs, plain subscribers
    checker.py     the checking process: reads all logs and judges; it shares no code with the router

Times in logs are `time.monotonic()`, which all processes of a Linux machine share.
"""
