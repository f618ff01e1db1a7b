"""Models of the Redis servers and of the coordinator."""
