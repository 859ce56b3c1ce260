// The parts that all warp-specialised kernels share: the ring of stages in shared memory with its mbarriers, and the
// order in which a persistent grid visits the output tiles.
//
// A stage is filled by producers (TMA, or threads with cp.async) and read by consumers (the math warpgroups or warps).
// It has two mbarriers: "full" completes when its data have arrived, "empty" when all consumers have released it.
// Include hopper.cuh, or a stand-in that defines its barrier functions, before this file.
#pragma once

// The position of a producer or a consumer in a ring of COUNT stages: a stage, and the parity of the phase that it
// waits for. All stages are empty at first, and a wait for parity 1 passes on a fresh mbarrier, so producers start with
// 1. `advance` and `next` are the same step; each kernel uses the form with which the compiler schedules it best.
template <int COUNT> struct Stage {
  static_assert(COUNT >= 2, "with a single stage, copies would not overlap with products");
  int index;
  u32 phase;

  FPEMU_FUNCTION static Stage of_producer() { return {0, 1}; }
  FPEMU_FUNCTION static Stage of_consumer() { return {0, 0}; }
  FPEMU_FUNCTION void advance() {
    if (++index == COUNT) index = 0, phase ^= 1;
  }
  FPEMU_FUNCTION Stage next() const {
    const int after = index + 1 == COUNT ? 0 : index + 1;
    return {after, after ? phase : phase ^ 1};
  }
};

// A ring of COUNT stages: the shared-memory addresses of the first stage, of its full barrier and of its empty barrier.
// BARRIER_STRIDE: bytes between the barriers of neighbouring stages (8: all full ones, then all empty ones; 16: pairs).
template <int COUNT, int STAGE_BYTES, int BARRIER_STRIDE = 8> struct Pipeline {
  static_assert(BARRIER_STRIDE == 8 || BARRIER_STRIDE == 16, "an mbarrier has 8 bytes");
  static_assert(STAGE_BYTES % 1024 == 0, "tiles with the 128-byte swizzle begin at multiples of 1024 bytes");
  typedef ::Stage<COUNT> Position;
  u32 buffers, full_barriers, empty_barriers;

  // `buffers`, `barriers`: shared-memory addresses of the stages and of 16 COUNT bytes for their barriers.
  FPEMU_FUNCTION static Pipeline at(u32 buffers, u32 barriers) {
    return {buffers, barriers, barriers + (BARRIER_STRIDE == 8 ? 8 * COUNT : 8)};
  }
  FPEMU_FUNCTION u32 buffer(const Position& stage) const { return buffers + stage.index * STAGE_BYTES; }
  FPEMU_FUNCTION u32 full(const Position& stage) const { return full_barriers + BARRIER_STRIDE * stage.index; }
  FPEMU_FUNCTION u32 empty(const Position& stage) const { return empty_barriers + BARRIER_STRIDE * stage.index; }

  // One thread calls this first; the thread block (or cluster) synchronises afterwards. The arguments are the arrivals
  // that complete a phase of a full and of an empty barrier.
  FPEMU_FUNCTION void init(int producer_arrivals, int consumer_arrivals) const {
    for (int i = 0; i < COUNT; i++) {
      barrier_init(full_barriers + BARRIER_STRIDE * i, producer_arrivals);
      barrier_init(empty_barriers + BARRIER_STRIDE * i, consumer_arrivals);
    }
    barrier_inits_done();
  }
  FPEMU_FUNCTION void producer_acquire(const Position& stage) const { barrier_wait(empty(stage), stage.phase); }
  FPEMU_FUNCTION void consumer_wait(const Position& stage) const { barrier_wait(full(stage), stage.phase); }
  // One thread of each consumer warp calls this after the warp's last read of the stage.
  FPEMU_FUNCTION void consumer_release(const Position& stage) const { barrier_arrive(empty(stage)); }
};

// Output tiles of TILE_M x TILE_N, rasterised in groups of `group` tile rows, each group column by column, so that
// tiles in flight at the same time share rows of A and columns of B in the L2 cache. CLUSTER thread blocks take tiles
// below each other, and a tile row here is a row of clusters.
template <int TILE_M, int TILE_N, int CLUSTER> struct TileScheduler {
  struct Tile {
    int m, n, batch;  // first row and column; index of the product in its batch
  };
  int rows, columns, group;

  FPEMU_FUNCTION TileScheduler(int M, int N, int group)
      : rows((M + TILE_M * CLUSTER - 1) / (TILE_M * CLUSTER)), columns((N + TILE_N - 1) / TILE_N), group(group) {}
  FPEMU_FUNCTION int tiles() const { return rows * columns; }
  // The grid is persistent: thread block (cluster) i takes tiles first(), first() + stride() ...
  FPEMU_FUNCTION static int first() { return blockIdx.x / CLUSTER; }
  FPEMU_FUNCTION static int stride() { return gridDim.x / CLUSTER; }
  // Tile number `index` of a batch, for thread block `rank` of the cluster.
  FPEMU_FUNCTION Tile in_batch(int index, int rank) const {
    const int batch = index / (rows * columns);
    Tile tile = in_product(index - batch * rows * columns, rank);
    tile.batch = batch;
    return tile;
  }
  FPEMU_FUNCTION Tile in_product(int index, int rank) const {
    const int top = index / (group * columns) * group, height = smaller(rows - top, group);
    index -= top * columns;
    return {((top + index % height) * CLUSTER + rank) * TILE_M, index / height * TILE_N, 0};
  }
};
