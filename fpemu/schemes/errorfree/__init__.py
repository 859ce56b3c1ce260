"""Splits, exact products and exact sums of the error-free schemes."""
