"""The GPU half of the number formats: the vocabulary of kernels, and how they become PTX."""
