// fp32 operands to fp16 words: the exponent that a row is scaled by, h = RNE16(x s) and r = RNE16((x s - h) 2^shift).
#include "hopper_split_fp16.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) split(const __grid_constant__ Operands all) {
  run<Rows<Fp16Words>>(all);
}
