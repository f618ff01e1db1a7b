"""Where channels live: placements, the hash ring, signed and versioned entries, and the plan that they form."""
