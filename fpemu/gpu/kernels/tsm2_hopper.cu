// TSM2 on Hopper: producer warps fill a pipeline with tiles of A and B, consumer warps multiply. Each element of C is
// still one chain of fused multiply-adds over ascending k.
//
// A thread block has 32·ROWS rows of A and at most WIDTH columns of B, and goes through k in stages of DEPTH, then to
// other rows, whose stages are under way before. As many stages are as shared memory holds.
//
// fp32: a consumer warp has all rows and about WIDTH / CONSUMERS columns, a thread ROWS rows of them, so that an
// element of A that was read from shared memory is used for all columns at once. fp64: a consumer warp has all columns
// and 8·ROWS·4 / CONSUMERS rows; the sums are made by DMMA, which is a chain of fused multiply-adds over ascending k.
#include "tallskinny_pipeline.cuh"
#ifdef DMMA
#include "tallskinny_fp64.cuh"
#else
#include "tallskinny_fp32.cuh"
#endif

extern "C" __global__ void __launch_bounds__(32 * (CONSUMERS + PRODUCERS), 1)
    tsm2_hopper(Operands o, const __grid_constant__ TensorMap map) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Ring ring = ring_of(memory);
  const int warp = uniform(threadIdx.x / 32);
  if (threadIdx.x == 0) ring.init(ARRIVALS, CONSUMERS);
  __syncthreads();
  const s64 column = blockIdx.y * (s64)WIDTH;
  const int columns = (int)(o.n - column < WIDTH ? o.n - column : WIDTH);
  if (warp >= CONSUMERS) {
    produce(o, &map, ring, warp - CONSUMERS, column, columns);
  } else {
    consume(o, ring, warp, column, columns);
  }
}
