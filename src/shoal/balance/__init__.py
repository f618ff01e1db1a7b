"""The balancer's mind: load windows from telemetry, policies that propose plans, and the core that carries them out.

Cores only: nothing here touches a socket, a clock or a file.
"""
