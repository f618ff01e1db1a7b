"""The engine: content matching. Events are emitted without a channel and reach the clients whose filters match.

Owns the protocol between clients and the matching layers, as cores without I/O: `client` on the side of a bus, and the
operators `access_point`, `matcher` and `exit_point`. docs/protocol-engine.md explains it and why nothing is lost.
"""
