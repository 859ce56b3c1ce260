// split_gemm_async.cu for Hopper and later: the same sums of the same words, which one thread has brought by TMA, a tile of a
// word at a time. No other thread has to ask for them, and none waits for the whole block: a warp goes on as soon as the
// stretch it needs is there, and a buffer is filled again once every warp has told that it is done with it.
#include "dependent_launch.cuh"
#include "hopper.cuh"
#include "split_tile.cuh"

static_assert(ROW_BYTES == 128, "TMA makes pieces of 16 bytes change places as spot() does in rows of 128 bytes");
constexpr int AHEAD = Tile::STAGES > 2 ? Tile::STAGES - 2 : 1;  // stretches that are brought before they are needed

struct Maps {  // of the words of A and of B: (1, rows, k), boxes of a tile's rows and 128 bytes
  TensorMap a[4], b[4];
};

struct Ring {  // a place in the sequence of buffers
  int stage;
  u32 phase;  // how often it began again, modulo two

  FPEMU_FUNCTION void go_on() {
    if (++stage == Tile::STAGES) stage = 0, phase ^= 1;
  }
};

struct Block {  // of threads
  u32 memory;        // the buffers, then for each stage a barrier "it is there", then those of "it is free"
  int a_row, b_row;  // of the tile, among all rows of a stack

  FPEMU_FUNCTION explicit Block(const Place& begin, const u8* memory)
      : memory(shared_address(memory)), a_row((int)offset(begin.at, AT_ROWS) + begin.row),
        b_row((int)offset(begin.at, AT_COLUMNS) + begin.column) {}
  FPEMU_FUNCTION u32 buffer(const Ring& r) const { return memory + r.stage * BUFFER_BYTES; }
  FPEMU_FUNCTION u32 there(int stage) const { return memory + Tile::STAGES * BUFFER_BYTES + 8 * stage; }
  FPEMU_FUNCTION u32 free(int stage) const { return there(stage) + 8 * Tile::STAGES; }
};

// Bring the words that a pass wants of a stretch, which begins at k.
template <int PASS> FPEMU_FUNCTION void bring(const Maps& maps, const Block& block, Ring& next, int k) {
  constexpr int ROWS = count_words(wanted(PASS, true)) * Tile::M + count_words(wanted(PASS, false)) * Tile::N;
  const u32 there = block.there(next.stage), to = block.buffer(next);
  barrier_wait(block.free(next.stage), next.phase ^ 1);
  barrier_expect(there, ROWS * ROW_BYTES);
  FPEMU_UNROLL
  for (int w = 0; w < Plan::WORDS; w++) {
    if (wanted(PASS, true) >> w & 1) tma_load(to + place<PASS>(w, true), &maps.a[w], there, k, block.a_row, 0);
    if (wanted(PASS, false) >> w & 1) tma_load(to + place<PASS>(w, false), &maps.b[w], there, k, block.b_row, 0);
  }
  next.go_on();
}

// A pass over K, and those after it.
template <int PASS>
FPEMU_FUNCTION void run(Sums& own, const Problem& p, const Maps& maps, const Block& block, const Place& begin,
                        u8* memory, Ring& now, Ring& next) {
  FragmentsB b;
  if (threadIdx.x == 0)
    for (int k = 0; k < AHEAD * Tile::K && k < p.K; k += Tile::K) bring<PASS>(maps, block, next, k);
  __syncwarp();
  FPEMU_SOME(unroll 1)
  for (int k = 0, number = 0; k < p.K; k += Tile::K, number++) {
    if (threadIdx.x == 0 && k + AHEAD * Tile::K < p.K) bring<PASS>(maps, block, next, k + AHEAD * Tile::K);
    __syncwarp();
    barrier_wait(block.there(now.stage), now.phase);
    const u8* buffer = memory + now.stage * BUFFER_BYTES;
    FPEMU_UNROLL
    for (int unit = 0; unit < Units<PASS>::COUNT; unit++)
      multiply_unit<PASS>(own, unit, buffer, begin.warp_row, begin.warp_column, b);
    promote_long(own, number, k + Tile::K >= p.K);
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(block.free(now.stage));
    now.go_on();
  }
  if constexpr (PASS + 1 < Plan::PASSES) run<PASS + 1>(own, p, maps, block, begin, memory, now, next);
}

extern __shared__ __align__(1024) u8 memory[];  // as Block says

extern "C" __global__ void __launch_bounds__(THREADS, Tile::BLOCKS) split_gemm(const __grid_constant__ Problem p,
                                                                               const __grid_constant__ Maps maps) {
  Sums own;
  clear(own);
  const Place begin(p);
  const Block block(begin, memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Tile::STAGES; stage++) {
      barrier_init(block.there(stage), 1);
      barrier_init(block.free(stage), THREADS / 32);
    }
    barrier_inits_done();
  }
  __syncthreads();
  after_what_was_queued();
  Ring now = {0, 0}, next = {0, 0};
  run<0>(own, p, maps, block, begin, memory, now, next);
  write_out(p, own);
}
