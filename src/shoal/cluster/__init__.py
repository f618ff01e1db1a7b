"""Local processes: servers, coordinator, agents and the keeper of the ring, and the supervisor that tends to
them."""
