// split_gemm_async.cu for Hopper and later: the same sums of the same words, which one thread loads by TMA, a tile of a
// word at a time. The other threads issue no loads, and no warp waits for the whole thread block: a warp continues as
// soon as the stage it needs is full, and a stage is filled again when all warps have released it.
#include "dependent_launch.cuh"
#include "hopper.cuh"
#include "pipeline.cuh"
#include "split_tile.cuh"

constexpr int PREFETCH = Tile::STAGES > 2 ? Tile::STAGES - 2 : 1;  // stages that are loaded before they are needed
static_assert(ROW_BYTES == 128, "TMA swizzles units of 16 bytes as spot() does in rows of 128 bytes");
static_assert(BUFFER_BYTES % 1024 == 0, "the 128-byte swizzle repeats every 1024 bytes");
static_assert(Tile::M <= 256 && Tile::N <= 256, "a TMA box has at most 256 rows");
typedef Pipeline<Tile::STAGES, BUFFER_BYTES> Ring;

struct Maps {  // of the words of A and of B: (1, rows, k), boxes of a tile's rows and 128 bytes
  TensorMap a[4], b[4];
};

// The ring, after whose buffers its barriers lie, and the first row and column of the tile among all rows of a stack.
struct Block {
  Ring ring;
  int a_row, b_row;

  FPEMU_FUNCTION explicit Block(const Place& begin, const u8* memory)
      : ring(Ring::at(shared_address(memory), shared_address(memory) + Tile::STAGES * BUFFER_BYTES)),
        a_row((int)offset(begin.at, AT_ROWS) + begin.row),
        b_row((int)offset(begin.at, AT_COLUMNS) + begin.column) {}
};

// Load the words that a pass needs into the next stage, whose first k is given.
template <int PASS> FPEMU_FUNCTION void load_stage(const Maps& maps, const Block& block, Ring::Position& stage, int k) {
  constexpr int ROWS =
      count_words(needed_words(PASS, true)) * Tile::M + count_words(needed_words(PASS, false)) * Tile::N;
  const u32 full = block.ring.full(stage), to = block.ring.buffer(stage);
  barrier_wait(block.ring.empty(stage), stage.phase ^ 1);  // `stage` counts phases as the consumers do
  barrier_expect(full, ROWS * ROW_BYTES);
  FPEMU_UNROLL
  for (int w = 0; w < Plan::WORDS; w++) {
    if (needed_words(PASS, true) >> w & 1) tma_load(to + place<PASS>(w, true), &maps.a[w], full, k, block.a_row, 0);
    if (needed_words(PASS, false) >> w & 1) tma_load(to + place<PASS>(w, false), &maps.b[w], full, k, block.b_row, 0);
  }
  stage.advance();
}

// A pass over K, and those after it.
template <int PASS>
FPEMU_FUNCTION void run(Sums& own, const Problem& p, const Maps& maps, const Block& block, const Place& begin,
                        u8* memory, Ring::Position& now, Ring::Position& next) {
  FragmentsB b;
  if (threadIdx.x == 0)
    for (int k = 0; k < PREFETCH * Tile::K && k < p.K; k += Tile::K) load_stage<PASS>(maps, block, next, k);
  __syncwarp();
  FPEMU_SOME(unroll 1)
  for (int k = 0, number = 0; k < p.K; k += Tile::K, number++) {
    if (threadIdx.x == 0 && k + PREFETCH * Tile::K < p.K) load_stage<PASS>(maps, block, next, k + PREFETCH * Tile::K);
    __syncwarp();
    block.ring.consumer_wait(now);
    const u8* buffer = memory + now.index * BUFFER_BYTES;
    FPEMU_UNROLL
    for (int unit = 0; unit < Units<PASS>::COUNT; unit++)
      multiply_unit<PASS>(own, unit, buffer, begin.warp_row, begin.warp_column, b);
    promote_long(own, number, k + Tile::K >= p.K);
    __syncwarp();
    if (threadIdx.x % 32 == 0) block.ring.consumer_release(now);
    now.advance();
  }
  if constexpr (PASS + 1 < Plan::PASSES) run<PASS + 1>(own, p, maps, block, begin, memory, now, next);
}

extern __shared__ __align__(1024) u8 memory[];  // as Block says

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    split_gemm(const __grid_constant__ Problem p, const __grid_constant__ Maps maps) {
  Sums own;
  clear(own);
  const Place begin(p);
  const Block block(begin, memory);
  if (threadIdx.x == 0) block.ring.init(1, THREADS / 32);
  __syncthreads();
  wait_for_previous_grid();
  Ring::Position now = Ring::Position::of_consumer(), next = now;
  run<0>(own, p, maps, block, begin, memory, now, next);
  store_outputs(p, own);
}
