"""`dsv4 selftest`: finds silent errors of the index, the cache and the answers before a user does."""
