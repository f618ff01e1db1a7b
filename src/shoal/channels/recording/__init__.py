"""Recorded channels: the agent writes what it hears on them into streams of its server."""
