"""What the error-free schemes are made of."""
