"""The engine on NVIDIA GPUs: driver, memory, and programs whose ops are kernel launches."""
