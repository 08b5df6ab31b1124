"""FP4 indexer kernels: formats, layouts, operations and the backends that run them.

Imports torch and numpy only; nothing from the serving side.
"""
