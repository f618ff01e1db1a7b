"""What benchmarks, soaks, experiments, the demo and the flow simulator have in common.

    load/       load in child processes
    rgame.py    the movement of players in RGame, the game of the Dynamoth paper
    machine.py  the machine, and how busy its processors are
    totals.py   counts that are added up over rounds and processes

Nothing here is part of the product, and no package that ships imports it.
"""
