"""Models of what Shoal talks to: Redis servers and the coordinator."""
