"""`dsv4 bench serve`: load on a running server, and what it makes of it."""
