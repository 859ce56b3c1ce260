"""The arithmetic of any matrix instruction in CUDA C++: emulated instructions and products."""
