"""The agent of one store."""
