"""State of the machine: registers, memories, poison, wait counters."""
