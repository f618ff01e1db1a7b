"""The small consistent store: versioned keys, leases, membership and barriers; its default is on Redis."""
