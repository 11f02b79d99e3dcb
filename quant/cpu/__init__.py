"""The block formats on the CPU: SIMD unpack and dot, one file a format, on the vocabulary of simd.py."""
