"""Checks that run while the production image is built. They stand on the standard library alone."""
