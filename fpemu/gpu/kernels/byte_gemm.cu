// Products of matrices of bytes by wgmma on Hopper, all matrices of a stack in one persistent launch: residues of the
// products modulo p_q of matrices q terms, q terms + 1 ..., the largest sums of rows and columns of a product, or the
// sums themselves of products of signed bytes.
//
// Before this text: hopper.cuh, byte_product (one wgmma of u8, 64 rows by TILE_N columns), byte_residues.cuh with the
// constants REDUCTION[], and struct Config:
//   ROW_BLOCKS, TILE_N, STAGES   rows of a warpgroup in blocks of 64, columns of a tile, stages of the pipeline
//   CLUSTER                      thread blocks in a cluster
//   OUTPUT                       RESIDUES, MAXIMA or SUMS
//   LAG                          whether a warpgroup's second block of rows runs one stage behind the first
//   INTERVAL                     chunks of 128 k whose sums stay below 2^32; then residues are reduced in place
//
// An operand is a stack of matrices, chunk after chunk: 128 bytes of every row. Thread blocks of a cluster compute tiles
// below each other, and each multicasts a part of the columns of B. Residues are stored as the accumulators lie: of a
// tile, 16 bytes a thread at a time, so that stores are contiguous (residue_sum.cu reads them).
//
// With a lag, the second block reads a stage after the first one, so that at the end of a tile the products of one block
// run while the other is reduced. The order of instructions then alternates less between accumulators, which lowers the
// power: 2 to 5 % more speed where power limits the clock (H200, n >= 8192).
#include "pipeline.cuh"

constexpr int BLOCKS = Config::ROW_BLOCKS, TILE_N = Config::TILE_N, STAGES = Config::STAGES, CLUSTER = Config::CLUSTER;
constexpr int WARPGROUPS = 2, THREADS = 128 * (1 + WARPGROUPS), TILE_M = 64 * BLOCKS * WARPGROUPS;
constexpr int ROW_BYTES = 128, BLOCK_BYTES = 64 * ROW_BYTES;
constexpr int A_BYTES = TILE_M * ROW_BYTES, B_BYTES = TILE_N * ROW_BYTES, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int ACCUMULATORS = TILE_N / 2;  // registers of a thread for 64 x TILE_N sums of a warpgroup
constexpr int PRODUCER_REGISTERS = 40, MATH_REGISTERS = 232;

static_assert(TILE_N % (32 * CLUSTER) == 0 && TILE_N <= 256, "16 sums are stored at a time, and B is divided");
static_assert(B_BYTES / CLUSTER % 1024 == 0, "the 128-byte swizzle repeats every 1024 bytes");
static_assert(STAGES * STAGE_BYTES + 1024 + 16 * STAGES <= 227 * 1024, "shared memory of a thread block");
static_assert((PRODUCER_REGISTERS + WARPGROUPS * MATH_REGISTERS) * 128 <= 65536, "registers of a multiprocessor");
constexpr int RESIDUES = 0, MAXIMA = 1, SUMS = 2;
static_assert(!Config::LAG || (BLOCKS == 2 && Config::OUTPUT == RESIDUES), "the lag is that of a second block");

typedef Pipeline<STAGES, STAGE_BYTES> Ring;
typedef TileScheduler<TILE_M, TILE_N, CLUSTER> Scheduler;

struct ByteProduct {
  u8* residues;                     // of tiles: (matrix, row of tiles, column of tiles, TILE_M TILE_N)
  int *row_maxima, *column_maxima;  // at first zero
  int M, N, chunks, group;
  int planes, terms;  // products, and products a modulus
  int* sums;          // (product, row, `pitch`), `stride` apart
  s64 stride, pitch;
  short a[64], b[64], length[64];  // SUMS: matrices a, a + 1 ... and b, b + 1 ..., whose products are added
};

FPEMU_FUNCTION int residue_of(int sum, const Reduction& of) {
  return rest_of(byte_sum((u32)sum, of.weights[0], of.start), of);
}

FPEMU_FUNCTION void reduce(int (&sums)[ACCUMULATORS], const Reduction& of) {
  FPEMU_UNROLL
  for (int i = 0; i < ACCUMULATORS; i++) sums[i] = residue_of(sums[i], of) & 255;
}

// The residues of a block of 64 rows; `to` is this thread's first 16 bytes of the block.
FPEMU_FUNCTION void store_residues(uint4* to, const int (&sums)[ACCUMULATORS], const Reduction& of) {
  FPEMU_UNROLL
  for (int c = 0; c < ACCUMULATORS / 16; c++) {
    u32 words[4];
    FPEMU_UNROLL
    for (int j = 0; j < 4; j++) {
      const int* s = sums + 16 * c + 4 * j;
      words[j] = pack_bytes(residue_of(s[0], of), residue_of(s[1], of), residue_of(s[2], of), residue_of(s[3], of));
    }
    to[c * 128 * WARPGROUPS] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// The sums of a block of 64 rows; `row` and `column` are those of the thread's first one. Pitches are even.
FPEMU_FUNCTION void store_sums(const ByteProduct& p, const int (&sums)[ACCUMULATORS], int product, int row,
                               int column) {
  int* to = p.sums + product * p.stride + row * p.pitch + column;
  FPEMU_UNROLL
  for (int g = 0; g < 2; g++) FPEMU_UNROLL
  for (int j = 0; j < ACCUMULATORS / 4; j++)
    if (row + 8 * g < p.M && column + 8 * j < p.N)
      *(uint2*)(to + 8 * g * p.pitch + 8 * j) = make_uint2(sums[4 * j + 2 * g], sums[4 * j + 2 * g + 1]);
}

// The largest sums of rows and columns of a warp's blocks: of a thread's sums, number 4i + 2g + n belongs to row + 8g and
// column + 8i + n. Sums outside of the matrices are zero.
FPEMU_FUNCTION void add_maxima(const ByteProduct& p, const int (&sums)[BLOCKS][ACCUMULATORS], int row, int column,
                               int lane) {
  constexpr int COLUMNS = ACCUMULATORS / 2;
  int most[COLUMNS];
  FPEMU_UNROLL
  for (int i = 0; i < COLUMNS; i++) most[i] = 0;
  FPEMU_UNROLL
  for (int r = 0; r < BLOCKS; r++) FPEMU_UNROLL
  for (int g = 0; g < 2; g++) {
    int of_row = 0;
    FPEMU_UNROLL
    for (int i = 0; i < COLUMNS; i++) {
      const int x = sums[r][i / 2 * 4 + 2 * g + i % 2];
      of_row = larger(of_row, x), most[i] = larger(most[i], x);
    }
    of_row = larger(of_row, __shfl_xor_sync(~0u, of_row, 1));
    of_row = larger(of_row, __shfl_xor_sync(~0u, of_row, 2));
    if (lane % 4 == 0 && row + 64 * r + 8 * g < p.M) atomicMax(p.row_maxima + row + 64 * r + 8 * g, of_row);
  }
  // lanes with the same columns exchange halves of them: each keeps the largest of one half
  int first = 0;
  FPEMU_UNROLL
  for (int step = 16, count = COLUMNS / 2; step >= 4; step /= 2, count /= 2) {
    const bool upper = lane & step;
    FPEMU_UNROLL
    for (int i = 0; i < COLUMNS / 2; i++) {
      if (i >= count) break;
      const int own = upper ? most[count + i] : most[i], other = upper ? most[i] : most[count + i];
      most[i] = larger(own, __shfl_xor_sync(~0u, other, step));
    }
    first += upper ? count : 0;
  }
  FPEMU_UNROLL
  for (int i = 0; i < COLUMNS / 8; i++) {
    const int at = first + i, c = column + at / 2 * 8 + at % 2;
    if (c < p.N) atomicMax(p.column_maxima + c, most[i]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    byte_gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
              const __grid_constant__ ByteProduct p) {
  extern __shared__ u8 memory[];
  __shared__ u64 barriers[2 * STAGES];
  const Ring ring = Ring::at((shared_address(memory) + 1023) & ~1023u, shared_address(barriers));
  const int warpgroup = uniform(threadIdx.x / 128), warp = uniform(threadIdx.x / 32) % 4, lane = threadIdx.x % 32;
  const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
  if (threadIdx.x == 0) {
    ring.init(1, 4 * WARPGROUPS * CLUSTER);
    tma_prefetch(&map_a), tma_prefetch(&map_b);
  }
  if (CLUSTER > 1) cluster_sync();
  else __syncthreads();
  grid_release();
  grid_wait();

  const Scheduler scheduler(p.M, p.N, p.group);
  const int tiles = scheduler.tiles() * p.planes;
  if (warpgroup == 0) {  // the producer
    lower_registers<PRODUCER_REGISTERS>();
    if (warp == 0 && lane == 0) {
      Ring::Position stage = Ring::Position::of_producer();
      const u64 policy = l2_policy(false);
      auto load = [&](const typename Scheduler::Tile& tile, int chunk, int a, int b) {
        ring.producer_acquire(stage);
        const u32 to = ring.buffer(stage), full = ring.full(stage), part = rank * (TILE_N / CLUSTER);
        barrier_expect(full, STAGE_BYTES);
        tma_fetch(to, &map_a, full, tile.m, chunk, a, policy);
        const u32 columns = to + A_BYTES + part * ROW_BYTES;
        if (CLUSTER == 1) tma_fetch(columns, &map_b, full, tile.n, chunk, b, policy);
        else tma_fetch_all(columns, &map_b, full, tile.n + (int)part, chunk, b, (1 << CLUSTER) - 1, policy);
        stage.advance();
      };
      for (int index = Scheduler::first(); index < tiles; index += Scheduler::stride()) {
        const auto tile = scheduler.in_batch(index, (int)rank);
        const bool pairs = Config::OUTPUT == SUMS;
        const int a = pairs ? p.a[tile.batch] : tile.batch, b = pairs ? p.b[tile.batch] : tile.batch;
        for (int i = 0; i < (pairs ? p.length[tile.batch] : 1); i++)
          for (int chunk = 0; chunk < p.chunks; chunk++) load(tile, chunk, a + i, b + i);
      }
      if (Config::LAG) load({0, 0, 0}, 0, 0, 0);  // the first block begins a tile that does not exist
    }
    __syncwarp();
  } else {  // the math warpgroups
    raise_registers<MATH_REGISTERS>();
    const u32 rows = (warpgroup - 1) * (A_BYTES / WARPGROUPS);  // of this warpgroup, in a tile of A
    int stage = 0;
    u32 phase = 0;
    auto release = [&](int of) {
      if (CLUSTER == 1) {
        if (lane == 0) barrier_arrive(ring.empty({of, 0}));
      } else if (lane < CLUSTER) barrier_arrive_at(ring.empty({of, 0}), lane);
    };
    auto next = [&](int& of) {
      if (++of == STAGES) of = 0;
    };
    auto advance = [&]() {
      if (++stage == STAGES) stage = 0, phase ^= 1;
    };
    auto multiply = [&](int (&sums)[ACCUMULATORS], int of, int block, int keep) {
      const u64 a = wgmma_tile(ring.buffer({of, 0}) + rows + block * BLOCK_BYTES);
      const u64 b = wgmma_tile(ring.buffer({of, 0}) + A_BYTES);
      FPEMU_UNROLL
      for (int k = 0; k < 4; k++) byte_product(sums, a + WGMMA_K * k, b + WGMMA_K * k, k > 0 || keep);
    };
    auto place = [&](const typename Scheduler::Tile& tile, int block) {
      const s64 row = tile.m / TILE_M, of = (s64)tile.batch * (scheduler.rows * CLUSTER) + row;
      u8* to = p.residues + (of * scheduler.columns + tile.n / TILE_N) * (TILE_M * TILE_N);
      return (uint4*)to + block * (ACCUMULATORS / 16) * (128 * WARPGROUPS) + (threadIdx.x - 128);
    };
    if constexpr (Config::LAG) {
      int first[ACCUMULATORS], second[ACCUMULATORS], behind = 0, oldest = 0;  // stages of the second block; to release
      auto begin = [&]() {                                                    // the first block's first chunk of a tile
        ring.consumer_wait({stage, phase});
        wgmma_fence();
        multiply(first, stage, 0, 0);
        wgmma_commit();
        advance();
      };
      begin();
      wgmma_wait<0>();
      hold(first);
      for (int index = Scheduler::first(); index < tiles; index += Scheduler::stride()) {
        const auto tile = scheduler.in_batch(index, (int)rank);
        const Reduction of = REDUCTION[tile.batch / p.terms];
        for (int chunk = 1; chunk < p.chunks; chunk++) {
          ring.consumer_wait({stage, phase});
          wgmma_fence();
          multiply(first, stage, 0, 1);
          multiply(second, behind, 1, chunk > 1);
          wgmma_commit();
          advance();
          next(behind);
          wgmma_wait<1>();
          if (chunk > 1) release(oldest), next(oldest);
        }
        wgmma_fence();
        multiply(second, behind, 1, p.chunks > 1);
        next(behind);
        wgmma_commit();
        wgmma_wait<1>();
        hold(first);
        if (p.chunks > 1) release(oldest), next(oldest);
        store_residues(place(tile, 0), first, of);
        wgmma_wait<0>();
        hold(first), hold(second);
        release(oldest), next(oldest);
        begin();
        store_residues(place(tile, 1), second, of);
        wgmma_wait<0>();
        hold(first), hold(second);
      }
    } else {
      for (int index = Scheduler::first(); index < tiles; index += Scheduler::stride()) {
        const auto tile = scheduler.in_batch(index, (int)rank);
        int sums[BLOCKS][ACCUMULATORS];
        const int chunks = Config::OUTPUT == SUMS ? p.chunks * p.length[tile.batch] : p.chunks;
        for (int start = 0; start < chunks; start += Config::INTERVAL) {
          const int count = smaller(chunks - start, Config::INTERVAL);
          int previous = 0;
          for (int chunk = 0; chunk < count; chunk++) {
            ring.consumer_wait({stage, phase});
            const u64 a = wgmma_tile(ring.buffer({stage, 0}) + rows), b = wgmma_tile(ring.buffer({stage, 0}) + A_BYTES);
            wgmma_fence();
            FPEMU_UNROLL
            for (int k = 0; k < 4; k++) FPEMU_UNROLL
            for (int r = 0; r < BLOCKS; r++)
              byte_product(sums[r], a + r * (BLOCK_BYTES / 16) + WGMMA_K * k, b + WGMMA_K * k, start + chunk + k > 0);
            wgmma_commit();
            if (chunk > 0) {
              wgmma_wait<1>();
              release(previous);
            }
            previous = stage;
            advance();
          }
          wgmma_wait<0>();
          FPEMU_UNROLL
          for (int r = 0; r < BLOCKS; r++) hold(sums[r]);
          release(previous);
          if (Config::INTERVAL >= 1 << 20) break;  // the only one
          if (start + Config::INTERVAL < chunks) {
            FPEMU_UNROLL
            for (int r = 0; r < BLOCKS; r++) reduce(sums[r], REDUCTION[tile.batch / p.terms]);
          }
        }
        if (tile.m >= p.M) continue;
        const int row = tile.m + (warpgroup - 1) * (64 * BLOCKS) + warp * 16 + lane / 4,
                  column = tile.n + 2 * (lane & 3);
        if constexpr (Config::OUTPUT == MAXIMA) {
          add_maxima(p, sums, row, column, lane);
        } else if constexpr (Config::OUTPUT == SUMS) {
          FPEMU_UNROLL
          for (int r = 0; r < BLOCKS; r++) store_sums(p, sums[r], tile.batch, row + 64 * r, column);
        } else {
          const Reduction of = REDUCTION[tile.batch / p.terms];
          FPEMU_UNROLL
          for (int r = 0; r < BLOCKS; r++) store_residues(place(tile, r), sums[r], of);
        }
      }
    }
  }
  if (CLUSTER > 1) __syncwarp(), cluster_sync();  // no thread block exits while another may still write to its memory
}
