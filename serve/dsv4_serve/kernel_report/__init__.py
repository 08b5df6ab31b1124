"""`dsv4 kernels report`: what every shipped kernel takes and executes, counted without a GPU."""
