"""The block formats on the CPU: SIMD unpack and dot, one file a format, on simd.py's vocabulary."""
