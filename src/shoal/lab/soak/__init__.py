"""Soaks: the simulator's checks against real processes on real servers, with faults on request.

A soak has one or more rounds, each with its own cluster. Its parts:

    rounds.py         the phases of every round: cluster, load processes, quiet, verdict
    run.py            rounds with faults, and with requested moves
    balancer_round.py rounds with a balancer, in which the load is raised
    hostile_round.py  rounds with hostile clients, and how much they disturb honest ones
    queue_round.py    rounds with a queue: queue_client.py, queue_orders.py and queue_checker.py belong to it
    engine_round.py   rounds with an engine: engine_client.py, engine_orders.py and engine_checker.py belong to it
    redis_round.py    redis-py's client and ours side by side while their server fails
    outcome.py        options, the sum over all rounds, and the facts that are printed

the load

    load_shape.py     the load of a round: channels, placements, publishers, subscribers
    surges.py         the load of rounds with a balancer
    load_worker.py    a load process; load_orders.py has its orders and reports, load_context.py the context of its
                      clients
    publishers.py     the publishers of a load process
    subscribers.py    the subscribers of a load process
    plain_clients.py  plain Redis clients, and watchers of control messages
    attacks.py        what hostile clients do; hostile_worker.py is their process, hostile_orders.py has its orders
    faults.py         kills of agents, servers and the coordinator
    move_schedule.py  when which channel is requested to move
    channel_capacity.py how much one channel carries on one server, and on several

the logs

    round_log.py      the lines of all logs
    plan_follower.py  logs changes of the plan
    move_requests.py  the same, and requests moves
    balancer_follower.py the same for rounds with a balancer, with its decisions and the load of servers

the verdict

    checker.py        the checking process: it reads all logs, and shares no code with the router
    move_ledger.py    the fate of each move, and when channels were moving
    move_report.py    the report on moves: fates, cost, plain clients
    balance.py        the report on the balancer
    histogram.py      latencies
    corners.py        the corner cases that a soak must meet

Times in logs are `time.monotonic()`, which all processes of a Linux machine share.
"""
