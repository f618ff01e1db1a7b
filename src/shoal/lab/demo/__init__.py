"""The demo: a cluster with a balancer, and a crowd of game players on its channels. The crowd grows, gathers and
leaves, and a server is killed.

    run.py              the demo from start to summary
    timeline.py         how many players there are when, and the capacity of a server that fits them
    game_map.py         the map that players walk on
    player.py           one player: a bus, its subscriptions, its updates
    delivery_audit.py   the players' own count of losses, duplicates and reordering
    crowd.py            a process with many players; crowd_orders.py has its orders and reports
    crowds.py           all crowd processes, seen from the demo
    server_events.py    the kill of a server, and the events about servers
    balancer_events.py  the events about the balancer's decisions
    frames.py           the figures of each second
    view.py             the live view, the headless line and the summary table

The experiments on real servers use the crowds too.
"""
