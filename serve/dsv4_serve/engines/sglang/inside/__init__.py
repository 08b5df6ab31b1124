"""What the engine's schedulers measure of the index path, and how it reaches SGLang's own /metrics."""
