"""The operations of a program: their meaning (reference.py), their records, and one folder a device."""
