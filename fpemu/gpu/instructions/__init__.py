"""Matrix instructions of an NVIDIA GPU: single instructions issued on operands of any shape."""
