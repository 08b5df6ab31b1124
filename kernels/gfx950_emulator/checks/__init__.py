"""Static checks of kernels: wait states and instruction coverage."""
