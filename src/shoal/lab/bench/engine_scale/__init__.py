"""The throughput of the engine by configuration: figures 7 to 12 of the E-SilboPS paper.

load.py          filters and events, in files that all processes map
worker.py        emitter, readers, subscribers of channels, and the bare index
throughput.py    the cluster, its configurations, and what is measured
operator_cpu.py  CPU of matchers and exit points that this machine has no cores for
projection.py    the arithmetic of the figures
figures.py       headline, tables and drawings
"""
