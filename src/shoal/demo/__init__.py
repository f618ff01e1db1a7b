"""The main job on one machine: a cluster, a crowd of game players on its channels that comes and goes, a balancer that
follows it, and a server that dies."""
