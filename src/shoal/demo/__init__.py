"""The main job on one machine: a cluster, a growing crowd of game players on its channels, channels that move, and a
server that dies."""
