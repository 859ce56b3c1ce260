// T = sums of products of fp16 words, D = alpha 2^-(e_row + e_column) T + beta C, for Hopper: wgmma on tiles that TMA
// loads, by a persistent warp-specialised kernel.
//
// Warp 0 is the producer: it loads tiles of the words, TILE_K along k at a time, into a ring of STAGES. One or two math
// warpgroups consume them, 64 rows of the output tile each. Thread blocks of a cluster compute tiles below each other
// and share the tiles of B: each loads every CLUSTERth one and multicasts it.
//
// A stage holds one word of A and one of B: stage w of a chunk of TILE_K has A's word WORDS - 1 - w and B's word w. A
// block is BLOCK_CHUNKS chunks. fpemu.gpu.gemm.wgmma.schedules writes before this text the function wgmma and
//   MainProducts, CorrectionProducts   pairs of words (A's, B's) in the order of their products, which alternate after
//                      TURN instructions: those of the main accumulator, which is promoted, and those of the
//                      corrections' accumulator, if there is one
//   struct Config:
//   BLOCK_PROMOTIONS   promotions of the main accumulator within a block, each after its next share of MainProducts
//   PROMOTE_BLOCKS     or one promotion after so many blocks; 0: never
//   CORRECTION_SCALE   factor of the corrections when they are added
//   SLICE_INTERVALS    promotion intervals (of PROMOTE_BLOCKS blocks) in a slice of K, whose sum goes to the partial
//                      sums of the slices before; 0: K is not sliced
//   SPREAD             the slices of an output tile are tiles of the grid: each is stored, and hopper_reduce.cu adds them
#include "hopper.cuh"
#include "hopper_epilogue.cuh"
#include "hopper_nonfinite.cuh"
#include "pipeline.cuh"

constexpr int WORDS = Config::WORDS, STAGES = Config::STAGES, CLUSTER = Config::CLUSTER;
constexpr int TILE_N = Config::TILE_N, TILE_K = 64, WARPGROUPS = Config::MATH_WARPGROUPS, TILE_M = 64 * WARPGROUPS;
constexpr int A_BYTES = TILE_M * TILE_K * 2, B_BYTES = TILE_N * TILE_K * 2, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int ACCUMULATORS = TILE_N / 2;  // fp32 registers of a thread for 64 x TILE_N sums of a warpgroup
constexpr int PRODUCER_REGISTERS = 40, MATH_REGISTERS = 232;
constexpr int STAGES_PER_BLOCK = Config::BLOCK_CHUNKS * WORDS;
constexpr int INSTRUCTIONS = Config::BLOCK_CHUNKS * TILE_K / 16;  // wgmma along k in a block, for one product of words
constexpr int MAIN_INSTRUCTIONS = MainProducts::COUNT * INSTRUCTIONS;
constexpr int CORRECTION_INSTRUCTIONS = CorrectionProducts::COUNT * INSTRUCTIONS;
// Blocks from one promotion to the next. The last interval may go on beyond K: TMA fills tiles with zeros there, which
// leave the accumulators unchanged.
constexpr bool PROMOTES = Config::PROMOTE_BLOCKS > 0, SLICED = Config::SLICE_INTERVALS > 0;
constexpr bool SPREAD = Config::SPREAD;
constexpr bool CORRECTS = CorrectionProducts::COUNT > 0;
constexpr int INTERVAL_BLOCKS = PROMOTES ? Config::PROMOTE_BLOCKS : 1;

static_assert(TILE_N % 16 == 0 && TILE_N <= 256, "wgmma takes at most 256 columns; the epilogue stores 16 at a time");
static_assert(WARPGROUPS == 1 || WARPGROUPS == 2, "named barriers alternate between two warpgroups");
static_assert(CLUSTER == 1 || CLUSTER == 2, "the host launches clusters of one or two thread blocks");
static_assert(WORDS == 1 || WORDS == 2, "operands have one or two fp16 words");
static_assert(A_BYTES % 1024 == 0 && B_BYTES % 1024 == 0, "the 128-byte swizzle repeats every 1024 bytes");
static_assert(
    STAGES >= (CORRECTS ? 2 * STAGES_PER_BLOCK : STAGES_PER_BLOCK + 1),
    "a warpgroup holds all stages of a block while the producer fills the next (corrections: all its stages)");
static_assert(STAGES * STAGE_BYTES + 1024 + 16 * STAGES + WARPGROUPS * TILE_N * 4 <= 227 * 1024,
              "shared memory of a thread block: the aligned ring, its barriers and the exponents of the columns");
static_assert((PRODUCER_REGISTERS + 2 * MATH_REGISTERS) * 128 <= 65536, "registers of a multiprocessor");
static_assert(PRODUCER_REGISTERS % 8 == 0 && MATH_REGISTERS % 8 == 0, "setmaxnreg takes multiples of 8");
static_assert(!SLICED || !CORRECTS, "partial sums of slices have one accumulator");
static_assert(!SPREAD || (SLICED && CLUSTER == 1), "a thread block computes a slice by itself");
static_assert(Config::BLOCK_PROMOTIONS == 1 || Config::PROMOTE_BLOCKS == 1, "promotions within a block, or per blocks");
static_assert(MAIN_INSTRUCTIONS % Config::BLOCK_PROMOTIONS == 0 &&
                  CORRECTION_INSTRUCTIONS % Config::BLOCK_PROMOTIONS == 0,
              "equal shares of the products per promotion");

typedef Pipeline<STAGES, STAGE_BYTES> Ring;
typedef TileScheduler<TILE_M, TILE_N, CLUSTER> Scheduler;

struct alignas(64) Maps {
  TensorMap a[WORDS], b[WORDS];
};

FPEMU_FUNCTION int intervals(const Task& task) {
  constexpr int LENGTH = INTERVAL_BLOCKS * Config::BLOCK_CHUNKS * TILE_K;
  return (task.K + LENGTH - 1) / LENGTH;
}
FPEMU_FUNCTION int slices(const Task& task) {
  return SLICED ? (intervals(task) + Config::SLICE_INTERVALS - 1) / Config::SLICE_INTERVALS : 1;
}
FPEMU_FUNCTION Scheduler scheduler(const Task& task) { return Scheduler(task.M, task.N, task.group); }

// What a thread block computes at a time: slices first <= slice < last of a tile.
struct Work {
  Scheduler::Tile tile;
  int first, last;
  FPEMU_FUNCTION Work(const Task& task, int index, u32 rank)
      : tile(scheduler(task).in_batch(SPREAD ? index / slices(task) : index, rank)),
        first(SPREAD ? index % slices(task) : 0),
        last(SPREAD ? first + 1 : slices(task)) {}
  FPEMU_FUNCTION static int count(const Task& task) {
    return scheduler(task).tiles() * task.batch * (SPREAD ? slices(task) : 1);
  }
  // Promotion intervals of a slice.
  FPEMU_FUNCTION static int length(const Task& task, int slice) {
    const int left = intervals(task) - slice * Config::SLICE_INTERVALS;
    return SLICED ? min(left, Config::SLICE_INTERVALS) : left;
  }
};

// The producer warp's elected thread: loads all stages of all tiles of this thread block.
FPEMU_FUNCTION void produce(const Maps& maps, const Task& task, const Ring& ring, u32 rank) {
  Ring::Position stage = Ring::Position::of_producer();
  const u64 policy = l2_policy(task.evict_first);
  for (int index = Scheduler::first(); index < Work::count(task); index += Scheduler::stride()) {
    const Work work(task, index, rank);
    const Scheduler::Tile& tile = work.tile;
    constexpr int INTERVAL_CHUNKS = INTERVAL_BLOCKS * Config::BLOCK_CHUNKS;
    const int before = SPREAD ? work.first * Config::SLICE_INTERVALS : 0;
    const int count = SPREAD ? Work::length(task, work.first) : intervals(task);
    const int a_matrix = task.where ? (int)task.where[tile.batch].a : 0;
    const int b_matrix = task.where ? (int)task.where[tile.batch].b : 0;
    for (int chunk = before * INTERVAL_CHUNKS, turn = 0; chunk < (before + count) * INTERVAL_CHUNKS; chunk++) {
      FPEMU_UNROLL
      for (int w = 0; w < WORDS; w++, turn++, stage.advance()) {
        const u32 full = ring.full(stage), to = ring.buffer(stage);
        ring.producer_acquire(stage);
        barrier_expect(full, STAGE_BYTES);
        tma_fetch(to, &maps.a[WORDS - 1 - w], full, tile.m, chunk, a_matrix, policy);
        if (CLUSTER == 1) tma_fetch(to + A_BYTES, &maps.b[w], full, tile.n, chunk, b_matrix, policy);
        else if (rank == (WORDS == CLUSTER ? w : turn % CLUSTER))
          tma_fetch_all(to + A_BYTES, &maps.b[w], full, tile.n, chunk, b_matrix, (1 << CLUSTER) - 1, policy);
      }
    }
  }
}

// A math warpgroup's view of the ring: the stages of the block that it multiplies.
struct Consumer {
  Ring ring;
  Ring::Position stage;
  int warpgroup, lane;
  u32 buffers[STAGES_PER_BLOCK], empty[STAGES_PER_BLOCK];

  // Waits for the stages of the next block.
  FPEMU_FUNCTION void wait_for_block() {
    FPEMU_UNROLL
    for (int i = 0; i < STAGES_PER_BLOCK; i++, stage.advance()) {
      buffers[i] = ring.buffer(stage), empty[i] = ring.empty(stage);
      ring.consumer_wait(stage);
    }
  }
  // Releases the stages of these empty barriers, in all thread blocks of the cluster.
  FPEMU_FUNCTION void release(const u32 (&barriers)[STAGES_PER_BLOCK]) const {
    FPEMU_UNROLL
    for (int i = 0; i < STAGES_PER_BLOCK; i++) {
      if (CLUSTER > 1) {
        if (lane < CLUSTER) barrier_arrive_at(barriers[i], lane);
      } else if (lane == 0) barrier_arrive(barriers[i]);
    }
  }
  // One instruction: words (i, j), instruction k of the block; keep = 0 starts the sum from zero.
  FPEMU_FUNCTION void multiply(float (&sum)[ACCUMULATORS], int i, int j, int k, int keep) const {
    const int chunk = k / 4 * WORDS, step = k % 4 * WGMMA_K;
    const u64 A = wgmma_tile(buffers[chunk + WORDS - 1 - i] + warpgroup * (A_BYTES / WARPGROUPS)) + step;
    const u64 B = wgmma_tile(buffers[chunk + j] + A_BYTES) + step;
    wgmma(sum, A, B, keep);
  }
  // Instructions first <= x < last of an accumulator, whose products alternate after TURN instructions.
  template <class Products>
  FPEMU_FUNCTION void issue(float (&sum)[ACCUMULATORS], int first, int last, int keep) const {
    constexpr int COUNT = Products::COUNT ? Products::COUNT : 1, TURN = Products::TURN;
    FPEMU_UNROLL
    for (int x = first; x < last; x++) {
      const int p = x / TURN % COUNT, k = x / (TURN * COUNT) * TURN + x % TURN;
      multiply(sum, Products::of_a(p), Products::of_b(p), k, x > first || keep);
    }
  }
};

// Two math warpgroups issue their products alternately: one promotes while the tensor cores run the other's.
FPEMU_FUNCTION void wait_for_turn(int warpgroup) {
  if (WARPGROUPS == 2) named_sync(1 + warpgroup, 256);
}
FPEMU_FUNCTION void pass_turn(int warpgroup) {
  if (WARPGROUPS == 2) named_arrive(2 - warpgroup, 256);
}

FPEMU_FUNCTION void promote(float (&total)[ACCUMULATORS], float (&sum)[ACCUMULATORS]) {
  hold(sum);
  FPEMU_UNROLL
  for (int i = 0; i < ACCUMULATORS; i++) total[i] = __fadd_rn(total[i], sum[i]);
  hold(sum);
}

// The mainloop over some promotion intervals with one accumulator.
FPEMU_FUNCTION void mainloop(Consumer& consumer, float (&total)[ACCUMULATORS], int intervals) {
  float sum[ACCUMULATORS];
  FPEMU_UNROLL
  for (int i = 0; i < ACCUMULATORS; i++) sum[i] = 0;
  for (int interval = 0; interval < intervals; interval++) {
    FPEMU_UNROLL
    for (int b = 0; b < INTERVAL_BLOCKS; b++) {
      consumer.wait_for_block();
      wait_for_turn(consumer.warpgroup);
      wgmma_fence();
      consumer.issue<MainProducts>(sum, 0, MAIN_INSTRUCTIONS, !PROMOTES || b > 0);
      wgmma_commit();
      pass_turn(consumer.warpgroup);
      wgmma_wait<0>();
      hold(sum);
      consumer.release(consumer.empty);
    }
    if (PROMOTES) promote(total, sum);
  }
  if (!PROMOTES) {
    FPEMU_UNROLL
    for (int i = 0; i < ACCUMULATORS; i++) total[i] = sum[i];
  }
}

// The mainloop of a single math warpgroup: the products of an interval run while the sum of the one before is promoted.
constexpr bool AHEAD =
    WARPGROUPS == 1 && PROMOTES && INTERVAL_BLOCKS == 1 && TILE_N <= 64 && STAGES > 2 * STAGES_PER_BLOCK;
FPEMU_FUNCTION void mainloop_ahead(Consumer& consumer, float (&total)[ACCUMULATORS], int intervals) {
  float even[ACCUMULATORS], odd[ACCUMULATORS];
  u32 previous[STAGES_PER_BLOCK];
  FPEMU_UNROLL
  for (int i = 0; i < ACCUMULATORS; i++) even[i] = odd[i] = 0;
  hold(even), hold(odd);
  auto issue = [&](float (&sum)[ACCUMULATORS]) {
    consumer.wait_for_block();
    wgmma_fence();
    consumer.issue<MainProducts>(sum, 0, MAIN_INSTRUCTIONS, 0);
    wgmma_commit();
  };
  auto finish = [&](float (&sum)[ACCUMULATORS]) {
    consumer.release(previous);
    promote(total, sum);
  };
  auto keep = [&] {
    FPEMU_UNROLL
    for (int i = 0; i < STAGES_PER_BLOCK; i++) previous[i] = consumer.empty[i];
  };
  issue(even), keep();
  for (int pair = 0; pair < (intervals - 1) / 2; pair++) {
    issue(odd), wgmma_wait<1>(), finish(even), keep();
    issue(even), wgmma_wait<1>(), finish(odd), keep();
  }
  if (intervals % 2 == 0) {
    issue(odd), wgmma_wait<1>(), finish(even), keep();
    wgmma_wait<0>(), finish(odd);
  } else {
    wgmma_wait<0>(), finish(even);
  }
}

// The mainloop with an accumulator for the corrections, whose products run while the main accumulator is promoted.
FPEMU_FUNCTION void mainloop_with_corrections(Consumer& consumer, float (&total)[ACCUMULATORS], int intervals) {
  constexpr int SHARES = Config::BLOCK_PROMOTIONS;
  float sum[ACCUMULATORS], corrections[ACCUMULATORS];
  u32 previous[STAGES_PER_BLOCK];  // empty barriers of the block before, which its corrections still read
  FPEMU_UNROLL
  for (int i = 0; i < ACCUMULATORS; i++) sum[i] = corrections[i] = 0;
  for (int interval = 0; interval < intervals; interval++) {
    FPEMU_UNROLL
    for (int b = 0; b < INTERVAL_BLOCKS; b++) {
      consumer.wait_for_block();
      FPEMU_UNROLL
      for (int share = 0; share < SHARES; share++) {
        wgmma_fence();
        consumer.issue<MainProducts>(sum, share * MAIN_INSTRUCTIONS / SHARES, (share + 1) * MAIN_INSTRUCTIONS / SHARES,
                                     !PROMOTES || b > 0);
        wgmma_commit();
        wgmma_wait<1>();  // the corrections issued before have completed
        hold(corrections);
        if (share == 0 && interval + b > 0) consumer.release(previous);
        wgmma_fence();
        consumer.issue<CorrectionProducts>(corrections, share * CORRECTION_INSTRUCTIONS / SHARES,
                                           (share + 1) * CORRECTION_INSTRUCTIONS / SHARES, 1);
        wgmma_commit();
        if (PROMOTES && b == INTERVAL_BLOCKS - 1) {
          wgmma_wait<1>();  // the main products have completed, the corrections still run
          promote(total, sum);
        }
      }
      FPEMU_UNROLL
      for (int i = 0; i < STAGES_PER_BLOCK; i++) previous[i] = consumer.empty[i];
    }
  }
  wgmma_wait<0>();
  hold(sum), hold(corrections);
  consumer.release(previous);
  FPEMU_UNROLL
  for (int i = 0; i < ACCUMULATORS; i++)
    total[i] = __fadd_rn(__fmul_rn(corrections[i], Config::CORRECTION_SCALE), PROMOTES ? total[i] : sum[i]);
}

// Adds a slice's sums to the partial sums in global memory; each thread reads what it wrote itself.
FPEMU_FUNCTION void add_slice(float4* partial_sums, float (&total)[ACCUMULATORS], bool first, bool last) {
  FPEMU_UNROLL
  for (int i = 0; i < ACCUMULATORS; i += 4) {
    float4* at = partial_sums + i / 4 * 128;
    if (!first) {
      const float4 x = __ldcg(at);
      total[i] = __fadd_rn(x.x, total[i]), total[i + 1] = __fadd_rn(x.y, total[i + 1]);
      total[i + 2] = __fadd_rn(x.z, total[i + 2]), total[i + 3] = __fadd_rn(x.w, total[i + 3]);
    }
    if (!last) __stcg(at, make_float4(total[i], total[i + 1], total[i + 2], total[i + 3]));
  }
}

extern "C" __global__ void __launch_bounds__(128 * (1 + WARPGROUPS), 1)
    hopper_gemm(const __grid_constant__ Maps maps, const __grid_constant__ Task task,
                const __grid_constant__ Nonfinite nonfinite) {
  extern __shared__ u8 shared[];
  __shared__ alignas(8) u64 barriers[2 * STAGES];
  __shared__ alignas(16) int exponents[WARPGROUPS][TILE_N];
  const Ring ring = Ring::at((shared_address(shared) + 1023) & ~1023u, shared_address(barriers));
  const int warpgroup = uniform(threadIdx.x / 128), warp = uniform(threadIdx.x / 32 % 4), lane = threadIdx.x % 32;
  const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
  if (threadIdx.x == 0) {
    ring.init(1, 4 * WARPGROUPS * CLUSTER);
    for (int w = 0; w < WORDS; w++) tma_prefetch(&maps.a[w]), tma_prefetch(&maps.b[w]);
  }
  if (CLUSTER > 1) cluster_sync();
  else __syncthreads();
  grid_release();
  grid_wait();

  if (warpgroup == 0) {  // the producer
    if (WARPGROUPS == 2) lower_registers<PRODUCER_REGISTERS>();
    if (warp == 0 && lane == 0) produce(maps, task, ring, rank);
    __syncwarp();
  } else {  // the math warpgroups
    if (WARPGROUPS == 2) raise_registers<MATH_REGISTERS>();
    Consumer consumer{ring, Ring::Position::of_consumer(), warpgroup - 1, lane};
    if (!CORRECTS && consumer.warpgroup == 1) pass_turn(consumer.warpgroup);
    const bool patches = nonfinite.any();
    for (int index = Scheduler::first(); index < Work::count(task); index += Scheduler::stride()) {
      const Work work(task, index, rank);
      const WarpgroupTile output(task, work.tile.m + consumer.warpgroup * 64, work.tile.n, work.tile.batch);
      const s64 place = WARPGROUPS * (SPREAD ? index : (s64)blockIdx.x) + consumer.warpgroup;
      float4* partial_sums = (float4*)task.slices + place * (ACCUMULATORS / 4) * 128 + threadIdx.x % 128;
      Exponents<TILE_N> powers;
      if (!SPREAD) powers.load(task, output, threadIdx.x % 128);
      float total[ACCUMULATORS];
      for (int slice = work.first; slice < work.last; slice++) {
        FPEMU_UNROLL
        for (int i = 0; i < ACCUMULATORS; i++) total[i] = 0;
        const int count = Work::length(task, slice);
        if (CORRECTS) mainloop_with_corrections(consumer, total, count);
        else if (AHEAD) mainloop_ahead(consumer, total, count);
        else mainloop(consumer, total, count);
        if (SLICED) add_slice(partial_sums, total, SPREAD || slice == 0, !SPREAD && slice == work.last - 1);
      }
      if (SPREAD) continue;
      store(task, output, total, powers, threadIdx.x % 128, exponents[consumer.warpgroup], 3 + consumer.warpgroup);
      if (patches) {
        named_sync(3 + consumer.warpgroup, 128);
        store_nonfinite<TILE_N>(task, nonfinite, output, threadIdx.x % 128);
      }
    }
  }
  if (CLUSTER > 1) {  // no thread block exits while another may still write to its shared memory
    __syncwarp();
    cluster_sync();
  }
}
