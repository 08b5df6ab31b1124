"""Front ends: Triton's assembly text and ELF code objects, both into `Kernel`."""
