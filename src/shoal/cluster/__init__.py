"""Local processes: servers, coordinator, agents and balancers, and the supervisor that runs them."""
