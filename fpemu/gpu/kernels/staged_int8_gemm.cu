// The product of the scheme `staged-int8` on Hopper: hh by wgmma on fp16, both corrections by wgmma on int8.
//
// Before this text: hopper_epilogue.cuh and staged_int8_words.cuh; fp16_product and int8_product, one wgmma of 64 rows
// by TILE_N columns each; and struct Config:
//   TILE_N, CLUSTER, STAGES   columns of the output tile, thread blocks in a cluster, stages of the pipeline
//   INTERVAL_CHUNKS           chunks of 64 k in a promotion interval, which is a stage of the scheme
//   EXACT_INTERVALS           whether some intervals have fp16 corrections
//
// staged_int8_split.cu writes the operands, a chunk of 64 k after another: 128 bytes a row of h in fp16, and 128 of q:
// 64 qr and 64 qh of A, 64 qh and 64 qr of B, so that a dot product of such rows is qr qh + qh qr; or 64 r in fp16, in
// an exact interval. The kernel is persistent and warp-specialised: a producer warp loads (h_A, h_B) and (q_A, q_B) of
// a chunk into two consecutive pipeline stages by TMA, and two math warpgroups multiply 64 rows each. A warpgroup
// promotes the sums of hh while the tensor cores add corrections. Two thread blocks of a cluster compute tiles below
// each other and share B: one multicasts h_B, the other q_B.
#include "pipeline.cuh"

constexpr int TILE_M = 128, TILE_K = 64, TILE_N = Config::TILE_N, CLUSTER = Config::CLUSTER, STAGES = Config::STAGES;
constexpr int ROW_BYTES = 128;  // of h or q: a chunk of a row
constexpr int A_BYTES = TILE_M * ROW_BYTES, B_BYTES = TILE_N * ROW_BYTES, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int WARPGROUPS = 2, THREADS = 128 * (1 + WARPGROUPS);
constexpr int ACCUMULATORS = TILE_N / 2;      // registers of a thread for 64 x TILE_N sums of a warpgroup
constexpr int INT32_CHUNKS = 65536 / TILE_K;  // int32 holds the corrections of so many: 2 127^2 2^16 < 2^31
constexpr int PRODUCER_REGISTERS = 24, MATH_REGISTERS = 240;
constexpr int INTERVAL_CHUNKS = Config::INTERVAL_CHUNKS;

static_assert(TILE_N % 16 == 0 && TILE_N <= 256, "wgmma takes at most 256 columns; the epilogue stores 16 at a time");
static_assert(CLUSTER == 1 || CLUSTER == 2, "one thread block of a cluster multicasts h_B, the other q_B");
static_assert(STAGES >= 4, "a warpgroup holds three stages while the producer fills the next one");
static_assert(A_BYTES % 1024 == 0 && B_BYTES % 1024 == 0, "the 128-byte swizzle repeats every 1024 bytes");
static_assert(STAGES * STAGE_BYTES + 1024 + 16 * STAGES <= 227 * 1024, "shared memory of a thread block");
static_assert((PRODUCER_REGISTERS + WARPGROUPS * MATH_REGISTERS) * 128 <= 65536, "registers of a multiprocessor");
static_assert(INT32_CHUNKS % INTERVAL_CHUNKS == 0, "int32 corrections are added at the end of an interval");

typedef Pipeline<STAGES, STAGE_BYTES> Ring;

struct Product {
  Task task;                     // without powers of two: rows and columns have scales
  const int *scale_a, *scale_b;  // of rows of A and columns of B, multiplied by j 2^e: 16 e + j
  int exact;                     // one of so many intervals has fp16 corrections
  int matrix_a, matrix_b;        // indices in the stacks of operands
};

// Of a thread's sums, number 4i + 2g + n belongs to row + 8g and column + 8i + n.
template <bool NEAR>
FPEMU_FUNCTION void unscale(float (&total)[ACCUMULATORS], const int (&scale_a)[2],
                            const int (&scale_b)[ACCUMULATORS / 2]) {
  float j[2], one_by_j[2];
  FPEMU_UNROLL
  for (int g = 0; g < 2; g++) j[g] = (float)(scale_a[g] & 15), one_by_j[g] = reciprocal(j[g]);
  FPEMU_UNROLL
  for (int i = 0; i < ACCUMULATORS / 2; i++) {
    const float k = (float)(scale_b[i] & 15), one_by_k = reciprocal(k);
    FPEMU_UNROLL
    for (int g = 0; g < 2; g++) {
      float& x = total[i / 2 * 4 + 2 * g + i % 2];
      x = unscaled<NEAR>(x, j[g], k, one_by_j[g], one_by_k, -((scale_a[g] >> 4) + (scale_b[i] >> 4)));
    }
  }
}

FPEMU_FUNCTION void unscale(const Product& p, float (&total)[ACCUMULATORS], int row, int column) {
  int scale_a[2], scale_b[ACCUMULATORS / 2], least = 1 << 20, most = -(1 << 20);
  FPEMU_UNROLL
  for (int g = 0; g < 2; g++) scale_a[g] = row + 8 * g < p.task.M ? p.scale_a[row + 8 * g] : 8;
  FPEMU_UNROLL
  for (int i = 0; i < ACCUMULATORS / 2; i++) {
    const int c = column + i / 2 * 8 + i % 2;
    scale_b[i] = c < p.task.N ? p.scale_b[c] : 8;
    least = smaller(least, scale_b[i] >> 4), most = larger(most, scale_b[i] >> 4);
  }
  least += smaller(scale_a[0] >> 4, scale_a[1] >> 4), most += larger(scale_a[0] >> 4, scale_a[1] >> 4);
  // sums are multiples of 2^-48, quotients not below 2^-56
  if (-least <= 127 && -most >= -70) unscale<true>(total, scale_a, scale_b);
  else unscale<false>(total, scale_a, scale_b);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    staged_int8_gemm(const __grid_constant__ TensorMap map_ha, const __grid_constant__ TensorMap map_qa,
                     const __grid_constant__ TensorMap map_hb, const __grid_constant__ TensorMap map_qb,
                     const __grid_constant__ Product p) {
  extern __shared__ u8 memory[];
  __shared__ u64 barriers[2 * STAGES];
  const Ring ring = Ring::at((shared_address(memory) + 1023) & ~1023u, shared_address(barriers));
  const int warpgroup = uniform(threadIdx.x / 128), warp = uniform(threadIdx.x / 32) % 4, lane = threadIdx.x % 32;
  const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
  if (threadIdx.x == 0) ring.init(1, 4 * WARPGROUPS * CLUSTER);
  if (CLUSTER > 1) cluster_sync();
  else __syncthreads();
  grid_release();
  grid_wait();

  // The tile order of TileScheduler (pipeline.cuh) with the quotient kept: with that type the compiler schedules the
  // mainloop differently.
  const int tile_rows = (p.task.M + TILE_M * CLUSTER - 1) / (TILE_M * CLUSTER);
  const int tile_columns = (p.task.N + TILE_N - 1) / TILE_N, tiles = tile_rows * tile_columns;
  const int chunks = ((p.task.K + TILE_K - 1) / TILE_K + INTERVAL_CHUNKS - 1) / INTERVAL_CHUNKS * INTERVAL_CHUNKS;
  const int first_tile = blockIdx.x / CLUSTER, tile_stride = gridDim.x / CLUSTER;
  auto locate = [&](int tile, int& row, int& column) {
    const int group_tiles = p.task.group * tile_columns, group = tile / group_tiles, top = group * p.task.group;
    const int height = smaller(tile_rows - top, p.task.group), at = tile - group * group_tiles;
    row = ((top + at % height) * CLUSTER + (int)rank) * TILE_M;
    column = at / height * TILE_N;
  };

  if (warpgroup == 0) {  // the producer
    lower_registers<PRODUCER_REGISTERS>();
    if (warp == 0 && lane == 0) {
      Ring::Position stage = Ring::Position::of_producer();
      const u64 policy = l2_policy(p.task.evict_first);
      for (int tile = first_tile; tile < tiles; tile += tile_stride) {
        int row, column;
        locate(tile, row, column);
        for (int load = 0; load < 2 * chunks; load++, stage.advance()) {  // h of a chunk, then its q
          ring.producer_acquire(stage);
          const u32 to = ring.buffer(stage), full = ring.full(stage);
          const TensorMap *a = load & 1 ? &map_qa : &map_ha, *b = load & 1 ? &map_qb : &map_hb;
          barrier_expect(full, STAGE_BYTES);
          tma_fetch(to, a, full, row, load / 2, p.matrix_a, policy);
          if (CLUSTER == 1) tma_fetch(to + A_BYTES, b, full, column, load / 2, p.matrix_b, policy);
          else if ((int)rank == (load & 1))
            tma_fetch_all(to + A_BYTES, b, full, column, load / 2, p.matrix_b, 3, policy);
        }
      }
    }
    __syncwarp();
  } else {  // the math warpgroups
    raise_registers<MATH_REGISTERS>();
    const u32 rows = (warpgroup - 1) * (A_BYTES / WARPGROUPS);  // of this warpgroup, in a tile of A
    int stage = 0;  // the consumer's Stage as two variables: in a struct the compiler allocates registers differently
    u32 phase = 0;
    auto release = [&](int of) {
      if (CLUSTER == 1) {
        if (lane == 0) barrier_arrive(ring.empty({of, 0}));
      } else if (lane < CLUSTER) barrier_arrive_at(ring.empty({of, 0}), lane);
    };
    auto wait = [&]() { ring.consumer_wait({stage, phase}); };
    auto advance = [&]() {
      if (++stage == STAGES) stage = 0, phase ^= 1;
    };
    auto tile_a = [&](int of) { return wgmma_tile(ring.buffer({of, 0}) + rows); };
    auto tile_b = [&](int of) { return wgmma_tile(ring.buffer({of, 0}) + A_BYTES); };
    for (int tile = first_tile; tile < tiles; tile += tile_stride) {
      float total[ACCUMULATORS], sum[ACCUMULATORS];
      int corrections[ACCUMULATORS];
      FPEMU_UNROLL
      for (int i = 0; i < ACCUMULATORS; i++) total[i] = 0, sum[i] = 0, corrections[i] = 0;
      auto promote = [&]() {
        hold(sum);
        FPEMU_UNROLL
        for (int i = 0; i < ACCUMULATORS; i++) total[i] += sum[i];
      };
      int next_exact = 0, int32_end = INT32_CHUNKS;
      for (int chunk = 0; chunk < chunks;) {
        if (Config::EXACT_INTERVALS && chunk == next_exact) {
          next_exact += p.exact * INTERVAL_CHUNKS;
          FPEMU_UNROLL
          for (int part = 0; part < INTERVAL_CHUNKS; part++, chunk++) {
            const int high = stage;
            const u64 ha = tile_a(stage), hb = tile_b(stage);
            wait();
            advance();
            const u64 ra = tile_a(stage), rb = tile_b(stage);
            wait();
            hold(sum);
            wgmma_fence();
            FPEMU_UNROLL
            for (int i = 0; i < 4; i++) fp16_product(sum, ra + WGMMA_K * i, hb + WGMMA_K * i, part > 0 || i > 0);
            FPEMU_UNROLL
            for (int i = 0; i < 4; i++) fp16_product(sum, ha + WGMMA_K * i, rb + WGMMA_K * i, 1);
            FPEMU_UNROLL
            for (int i = 0; i < 4; i++) fp16_product(sum, ha + WGMMA_K * i, hb + WGMMA_K * i, 1);
            wgmma_commit();
            wgmma_wait<0>();
            release(high);
            release(stage);
            advance();
          }
          promote();
        }
        int until = smaller(chunks, int32_end), previous = -1;  // previous: the stage whose corrections still run
        if (Config::EXACT_INTERVALS) until = smaller(until, next_exact);
        while (chunk < until) {
          FPEMU_UNROLL
          for (int part = 0; part < INTERVAL_CHUNKS; part++, chunk++) {
            const u64 ha = tile_a(stage), hb = tile_b(stage);
            wait();
            hold(sum);
            wgmma_fence();
            FPEMU_UNROLL
            for (int i = 0; i < 4; i++) fp16_product(sum, ha + WGMMA_K * i, hb + WGMMA_K * i, part > 0 || i > 0);
            wgmma_commit();
            const int high = stage;
            advance();
            const u64 qa = tile_a(stage), qb = tile_b(stage);
            wgmma_wait<1>();  // the corrections of the previous chunk have completed
            hold(corrections);
            if (previous >= 0) release(previous);
            wait();
            wgmma_fence();
            FPEMU_UNROLL
            for (int i = 0; i < 4; i++) int8_product(corrections, qa + WGMMA_K * i, qb + WGMMA_K * i, 1);
            wgmma_commit();
            wgmma_wait<1>();  // hh has completed, the corrections still run
            release(high);
            previous = stage;
            advance();
          }
          promote();
        }
        wgmma_wait<0>();
        hold(corrections);
        if (previous >= 0) release(previous);
        if (chunk == int32_end || chunk == chunks) {
          FPEMU_UNROLL
          for (int i = 0; i < ACCUMULATORS; i++) total[i] += (float)corrections[i], corrections[i] = 0;
          int32_end += INT32_CHUNKS;
        }
      }
      int row, column;
      locate(tile, row, column);
      row += (warpgroup - 1) * 64;
      unscale(p, total, row + warp * 16 + lane / 4, column + 2 * (lane & 3));
      const int none[2] = {0, 0};
      store<TILE_N>(p.task, WarpgroupTile(p.task, row, column, 0), total, threadIdx.x % 128, nullptr, none);
    }
  }
  if (CLUSTER > 1) __syncwarp(), cluster_sync();  // no thread block exits while another may still write to its memory
}
