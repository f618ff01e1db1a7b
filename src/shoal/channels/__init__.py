"""Broadcast channels: the router in every client, the agent beside every server."""
