"""The balancer: policies that turn load windows into proposals, and the core that applies them.

Cores only: nothing here touches a socket, a clock or a file.
"""
