"""The protocols that are simulated: what runs in a seed, what is checked, and what a campaign must meet."""
