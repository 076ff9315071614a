"""The only layer that talks to CUDA: NVRTC, the driver, tensor maps, launches, and torch tensors."""
