"""The simulated world: virtual time, machines, event loops, processes, network and faults."""
