"""The plan: placements, the hash ring, and signed, versioned entries."""
