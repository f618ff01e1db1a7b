"""The process that decides: ring keeper, mover and balancer, with their shells."""
