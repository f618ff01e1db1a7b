"""The coordinator: a small consistent store with versioned keys, leases, memberships and barriers. Redis is the default
backend.
"""
