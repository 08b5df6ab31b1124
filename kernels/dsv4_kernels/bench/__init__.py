"""Times of the paged logits on the GPU that is there, at published shapes, beside what the hardware allows."""
