"""Parts that the agents of all kinds of hosts share: lease and membership, reports, the coordinator."""
