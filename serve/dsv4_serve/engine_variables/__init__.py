"""Environment variables of SGLang and AITER: those of the index path typed, and what else the pinned engine knows."""
