// As hopper_gemm.cu, with tiles of 128 x 256: for schedules that promote after every chunk of k, whose accumulator lives
// for one chunk only. A math warpgroup computes a chunk's sums for 128 columns, adds them to its totals, and uses the
// same registers for the other 128. So totals of 256 columns fit, and the tile loads a quarter fewer bytes than two of
// 128 x 128.
//
// A stage holds all words of a chunk of 128 rows or columns, TILE_K along k. A chunk has three stages, in the order in
// which they are released: B's first half, A, B's second half. Warp 0 is the producer. fpemu.gpu.gemm.wgmma.schedules
// writes before this text the function wgmma of 128 columns, struct MainProducts and struct Config, as in hopper_gemm.cu.
#include "hopper.cuh"
#include "hopper_epilogue.cuh"
#include "hopper_nonfinite.cuh"
#include "pipeline.cuh"

constexpr int WORDS = Config::WORDS, STAGES = Config::STAGES, CLUSTER = Config::CLUSTER;
constexpr int SIDE = 128, TILE_M = SIDE, TILE_N = 2 * SIDE, TILE_K = 64;
constexpr int WORD_BYTES = SIDE * TILE_K * 2, STAGE_BYTES = WORDS * WORD_BYTES;
constexpr int ACCUMULATORS = SIDE / 2;  // fp32 registers of a thread for 64 x SIDE sums of a warpgroup
constexpr int PRODUCER_REGISTERS = 40, MATH_REGISTERS = 232;
constexpr int INSTRUCTIONS = MainProducts::COUNT * TILE_K / 16;
constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + 2 * TILE_N * 4 + 16 * STAGES;

static_assert(Config::BLOCK_CHUNKS == 1 && Config::PROMOTE_BLOCKS == 1 && Config::BLOCK_PROMOTIONS == 1 &&
                  Config::SLICE_INTERVALS == 0,
              "one promotion after every chunk");
static_assert(CLUSTER == 1 || CLUSTER == 2, "the host launches clusters of one or two thread blocks");
static_assert(STAGES > 3, "a warpgroup holds the stages of a chunk while the producer fills the next one");
static_assert(SHARED_BYTES <= 227 * 1024,
              "shared memory of a thread block: stages, exponents of the columns, barriers");

typedef Pipeline<STAGES, STAGE_BYTES> Ring;
typedef TileScheduler<TILE_M, TILE_N, CLUSTER> Scheduler;

struct alignas(64) Maps {
  TensorMap a[WORDS], b[WORDS];
};

FPEMU_FUNCTION int chunks(const Task& task) { return (task.K + TILE_K - 1) / TILE_K; }
FPEMU_FUNCTION Scheduler scheduler(const Task& task) { return Scheduler(task.M, task.N, task.group); }
FPEMU_FUNCTION int tiles(const Task& task) { return scheduler(task).tiles() * task.batch; }

// The producer warp's elected thread. SHARED: by all blocks of the cluster, each of which loads and multicasts a word.
template <bool SHARED>
FPEMU_FUNCTION void load(const Ring& ring, Ring::Position& stage, const TensorMap* words, int row, int chunk,
                         int matrix, u32 rank, u64 policy) {
  const u32 full = ring.full(stage), to = ring.buffer(stage);
  ring.producer_acquire(stage);
  barrier_expect(full, STAGE_BYTES);
  FPEMU_UNROLL
  for (int w = 0; w < WORDS; w++) {
    if (!SHARED || CLUSTER == 1) tma_fetch(to + w * WORD_BYTES, words + w, full, row, chunk, matrix, policy);
    else if (rank == w % CLUSTER)
      tma_fetch_all(to + w * WORD_BYTES, words + w, full, row, chunk, matrix, (1 << CLUSTER) - 1, policy);
  }
  stage.advance();
}
FPEMU_FUNCTION void produce(const Maps& maps, const Task& task, const Ring& ring, u32 rank) {
  Ring::Position stage = Ring::Position::of_producer();
  const u64 policy = l2_policy(task.evict_first);
  for (int index = Scheduler::first(); index < tiles(task); index += Scheduler::stride()) {
    const Scheduler::Tile tile = scheduler(task).in_batch(index, rank);
    const int a_matrix = task.where ? (int)task.where[tile.batch].a : 0;
    const int b_matrix = task.where ? (int)task.where[tile.batch].b : 0;
    for (int chunk = 0; chunk < chunks(task); chunk++) {
      load<true>(ring, stage, maps.b, tile.n, chunk, b_matrix, rank, policy);
      load<false>(ring, stage, maps.a, tile.m, chunk, a_matrix, rank, policy);
      load<true>(ring, stage, maps.b, tile.n + SIDE, chunk, b_matrix, rank, policy);
    }
  }
}

// A math warpgroup's view of the ring.
struct Consumer {
  Ring ring;
  Ring::Position stage;
  int warpgroup, lane;
  struct Held {
    u32 buffer, empty;
  };

  FPEMU_FUNCTION Held wait() {
    const Held held = {ring.buffer(stage), ring.empty(stage)};
    ring.consumer_wait(stage);
    stage.advance();
    return held;
  }
  FPEMU_FUNCTION void release(const Held& held) const {  // in all thread blocks of the cluster
    if (CLUSTER > 1) {
      if (lane < CLUSTER) barrier_arrive_at(held.empty, lane);
    } else if (lane == 0) barrier_arrive(held.empty);
  }
  // A chunk's sums for the columns in `b`. The two warpgroups issue alternately: one promotes while the tensor cores run
  // the other's products.
  FPEMU_FUNCTION void multiply(float (&sum)[ACCUMULATORS], const Held& a, const Held& b) const {
    constexpr int TURN = MainProducts::TURN, COUNT = MainProducts::COUNT;
    named_sync(1 + warpgroup, 256);
    wgmma_fence();
    FPEMU_UNROLL
    for (int x = 0; x < INSTRUCTIONS; x++) {
      const int p = x / TURN % COUNT, step = (x / (TURN * COUNT) * TURN + x % TURN) * WGMMA_K;
      const u32 word_a = a.buffer + MainProducts::of_a(p) * WORD_BYTES + warpgroup * (WORD_BYTES / 2);
      const u32 word_b = b.buffer + MainProducts::of_b(p) * WORD_BYTES;
      wgmma(sum, wgmma_tile(word_a) + step, wgmma_tile(word_b) + step, x > 0);
    }
    wgmma_commit();
    named_arrive(2 - warpgroup, 256);
    wgmma_wait<0>();
    hold(sum);
  }
};

template <int HALF> FPEMU_FUNCTION void promote(float (&total)[2 * ACCUMULATORS], float (&sum)[ACCUMULATORS]) {
  FPEMU_UNROLL
  for (int i = 0; i < ACCUMULATORS; i++)
    total[HALF * ACCUMULATORS + i] = __fadd_rn(total[HALF * ACCUMULATORS + i], sum[i]);
  hold(sum);
}

extern "C" __global__ void __launch_bounds__(384, 1)
    hopper_gemm(const __grid_constant__ Maps maps, const __grid_constant__ Task task,
                const __grid_constant__ Nonfinite nonfinite) {
  extern __shared__ __align__(1024) u8 shared[];
  int* exponents = (int*)(shared + STAGES * STAGE_BYTES);  // of each warpgroup's columns
  const Ring ring = Ring::at(shared_address(shared), shared_address(exponents + 2 * TILE_N));
  const int warpgroup = uniform(threadIdx.x / 128), warp = uniform(threadIdx.x / 32 % 4), lane = threadIdx.x % 32;
  const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
  if (threadIdx.x == 0) {
    ring.init(1, 8 * CLUSTER);
    for (int w = 0; w < WORDS; w++) tma_prefetch(&maps.a[w]), tma_prefetch(&maps.b[w]);
  }
  if (CLUSTER > 1) cluster_sync();
  else __syncthreads();
  grid_release();
  grid_wait();

  if (warpgroup == 0) {  // the producer
    lower_registers<PRODUCER_REGISTERS>();
    if (warp == 0 && lane == 0) produce(maps, task, ring, rank);
    __syncwarp();
  } else {  // the math warpgroups
    raise_registers<MATH_REGISTERS>();
    Consumer consumer{ring, Ring::Position::of_consumer(), warpgroup - 1, lane};
    if (consumer.warpgroup == 1) named_arrive(1, 256);  // the other one begins
    const bool patches = nonfinite.any();
    int* columns = exponents + consumer.warpgroup * TILE_N;
    for (int index = Scheduler::first(); index < tiles(task); index += Scheduler::stride()) {
      const Scheduler::Tile tile = scheduler(task).in_batch(index, rank);
      const WarpgroupTile output(task, tile.m + consumer.warpgroup * 64, tile.n, tile.batch);
      Exponents<TILE_N> powers;
      powers.load(task, output, threadIdx.x % 128);
      float total[2 * ACCUMULATORS], sum[ACCUMULATORS];
      FPEMU_UNROLL
      for (int i = 0; i < 2 * ACCUMULATORS; i++) total[i] = 0;
      FPEMU_UNROLL
      for (int i = 0; i < ACCUMULATORS; i++) sum[i] = 0;
      for (int chunk = 0; chunk < chunks(task); chunk++) {
        const Consumer::Held first = consumer.wait(), a = consumer.wait();
        consumer.multiply(sum, a, first);
        consumer.release(first);
        promote<0>(total, sum);
        const Consumer::Held second = consumer.wait();
        consumer.multiply(sum, a, second);
        consumer.release(a), consumer.release(second);
        promote<1>(total, sum);
      }
      store(task, output, total, powers, threadIdx.x % 128, columns, 3 + consumer.warpgroup);
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
