"""Products of any scheme on a GPU: `fpemu.gpu.gemm` and `fpemu.gpu.plan`."""
