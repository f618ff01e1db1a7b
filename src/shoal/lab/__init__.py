"""Benchmarks, soaks, experiments, the demo and the protocol simulator. This level has what they share.

    harness/    load in child processes
    rgame.py    the movement of players in RGame, the game of the Dynamoth paper
    machine.py  the machine, and how busy its processors are
    totals.py   counts that are added up over rounds and processes

The lab is not part of the product. Only the command line imports it, to start its commands.
"""
