"""The leader, the process that decides: ring keeper, conductor and balancer, with their shells."""
