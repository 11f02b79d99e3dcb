"""The operations of a program: their meaning (reference.py), records, and one folder a device."""
