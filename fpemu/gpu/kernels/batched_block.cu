// Batched products as MAGMA's kernel has them: a block of D a group of threads, blocks of A and B by way of registers
// into shared memory (or there directly, where the machine can and their alignment allows it), sums in the fragments of
// warps.
#include "batched_bulk.cuh"
#include "batched_epilogue.cuh"

// A block of A or B that begins at a row of its own and at k.
template <class T> FPEMU_FUNCTION Source source_of(const Stack& s, int product, int row, int k, int rows, int K,
                                                   bool absent) {
  Source result;
  const Place place = T::IS_A ? place_of_a(s, product) : place_of_b(s, product);
  result.matrix = place.at, result.line = T::ALONG_K == T::IS_A ? place.row : place.column, result.plane = s.plane;
  result.first_line = T::ALONG_K ? row : k, result.first = T::ALONG_K ? k : row;
  result.lines = absent ? 0 : T::ALONG_K ? rows : K, result.length = T::ALONG_K ? K : rows;
  result.end = result.matrix + (result.lines - 1) * s.line + (s64)result.length * ELEMENT;
  return result;
}
template <class T> FPEMU_FUNCTION void advance(Source& s) { (T::ALONG_K ? s.first : s.first_line) += Config::BLK_K; }

FPEMU_FUNCTION void shift_tiles(const Source& a, const Source& b, int thread, u8* buffer) {
  if (TileA::SETTLES || TileB::SETTLES) sync_warp();  // a line's pieces were brought by several threads
  if (TileA::SETTLES) shift_lines<TileA>(a, thread, buffer);
  if (TileB::SETTLES) shift_lines<TileB>(b, thread, buffer + TileA::BYTES);
  if (Pieces<TileA>::RAGGED) clean<TileA>(a, thread, buffer);
  if (Pieces<TileB>::RAGGED) clean<TileB>(b, thread, buffer + TileA::BYTES);
}

// A and B, over all of K, into the sums; `own`: shared memory of the group.
FPEMU_FUNCTION void mainloop(Accumulators& sums, Source& a, Source& b, int K, u8* own, int group, int thread) {
  const int warp = thread / 32;
  const bool computes = COMPUTING * 32 == GROUP || warp < COMPUTING;
  if (Config::STAGES == 1) {
    if (Config::ASYNC) {
      copy_tile_async(a, b, thread, own);
      commit_copies(), wait_for_copies_of<0>();
      shift_tiles(a, b, thread, own);
    } else {
      Fetched<TileA> next_a;
      Fetched<TileB> next_b;
      fetch(next_a, a, thread), fetch(next_b, b, thread);
      store(next_a, a, thread, own), store(next_b, b, thread, own + TileA::BYTES);
    }
    sync_group(group);
    if (computes) multiply(sums, own, warp, K);
    return;
  }
  const int steps = (K + Config::BLK_K - 1) / Config::BLK_K;
  if (Config::ASYNC) {
    Source here_a = a, here_b = b;
    FPEMU_UNROLL
    for (int s = 0; s < Config::STAGES - 1; s++) {
      if (s < steps) copy_tile_async(a, b, thread, own + s * BUFFER);
      advance<TileA>(a), advance<TileB>(b), commit_copies();
    }
    for (int s = 0, at = 0; s < steps; s++) {
      wait_for_copies_of<larger(Config::STAGES - 2, 0)>();
      shift_tiles(here_a, here_b, thread, own + at * BUFFER);
      sync_group(group);
      const int free = at == 0 ? Config::STAGES - 1 : at - 1;
      if (s + Config::STAGES - 1 < steps) copy_tile_async(a, b, thread, own + free * BUFFER);
      advance<TileA>(a), advance<TileB>(b), commit_copies();
      advance<TileA>(here_a), advance<TileB>(here_b);
      if (computes) multiply(sums, own + at * BUFFER, warp, K - s * Config::BLK_K);
      at = at + 1 == Config::STAGES ? 0 : at + 1;
    }
    return;
  }
  Fetched<TileA> next_a;
  Fetched<TileB> next_b;
  fetch(next_a, a, thread), fetch(next_b, b, thread);
  for (int s = 0; s < steps; s++) {
    u8* buffer = own + s % 2 * BUFFER;  // read last two steps ago, and all have met since
    store(next_a, a, thread, buffer), store(next_b, b, thread, buffer + TileA::BYTES);
    sync_group(group);
    advance<TileA>(a), advance<TileB>(b);
    if (s + 1 < steps) fetch(next_a, a, thread), fetch(next_b, b, thread);
    if (computes) multiply(sums, buffer, warp, K - s * Config::BLK_K);
  }
}

FPEMU_FUNCTION void clear_accumulators(Accumulators& sums) {
  FPEMU_UNROLL
  for (auto& row : sums) FPEMU_UNROLL
  for (auto& unit : row) FPEMU_UNROLL
  for (auto& s : unit) s = zero();
}

FPEMU_FUNCTION void copy_tiles_async(const Problem& p, int product, int thread, u8* buffer) {
  if (Config::FLAT) {
    copy_contiguous_async<true>(place_of_a(p.a, product).at, p.a.first, p.batch, thread, buffer);
    copy_contiguous_async<false>(place_of_b(p.b, product).at, p.b.first, p.batch, thread, buffer + FLAT_A);
    return;
  }
  copy_tile_async(source_of<TileA>(p.a, product, 0, 0, rows_of(p), depth_of(p), false),
                  source_of<TileB>(p.b, product, 0, 0, columns_of(p), depth_of(p), false), thread, buffer);
}

// Products of one block of A and B each; while one is multiplied, the next STAGES are under way.
FPEMU_FUNCTION void persistent_loop(const Problem& p, u8* own, int group, int thread) {
  const int warp = thread / 32, step = gridDim.x;
  const bool computes = COMPUTING * 32 == GROUP || warp < COMPUTING;
  int product = blockIdx.x, at = 0, ahead = product;
  FPEMU_UNROLL
  for (int s = 0; s < Config::STAGES; s++, ahead += step) {
    if (ahead < p.batch) copy_tiles_async(p, ahead, thread, own + s * BUFFER);
    commit_copies();
  }
  for (; product < p.batch; product += step, ahead += step) {
    u8* buffer = own + at * BUFFER;
    if (ahead < p.batch) copy_tiles_async(p, ahead, thread, own + (at ? at - 1 : Config::STAGES) * BUFFER);
    commit_copies(), wait_for_copies_of<Config::STAGES>();
    u8* tiles = Config::FLAT && Config::APART ? own + BUFFERS * BUFFER : buffer;
    if (Config::FLAT)
      distribute_tiles(place_of_a(p.a, product).at, place_of_b(p.b, product).at, thread, group, buffer, tiles);
    else
      shift_tiles(source_of<TileA>(p.a, product, 0, 0, rows_of(p), depth_of(p), false),
                  source_of<TileB>(p.b, product, 0, 0, columns_of(p), depth_of(p), false), thread, buffer);
    sync_group(group);
    Accumulators sums;
    clear_accumulators(sums);
    if (computes) multiply(sums, tiles, warp, depth_of(p));
    epilogue(p, sums, product, 0, 0, false, STAGE_APART ? own + BUFFERS * BUFFER : buffer, group, thread);
    sync_group(group);  // A, B and D have been read
    at = at == Config::STAGES ? 0 : at + 1;
  }
}

// The same with bulk copies: the copies of a buffer's next product are issued as soon as all warps have read the
// buffer.
FPEMU_FUNCTION void persistent_bulk_loop(const Problem& p, u8* own, int group, int thread) {
  const int warp = thread / 32, step = gridDim.x;
  const bool computes = COMPUTING * 32 == GROUP || warp < COMPUTING;
  u8 *tiles = own + BUFFERS * BUFFER, *barriers = own + SHARED - 16 * BUFFERS;
  if (thread == 0)
    for (int s = 0; s < BUFFERS; s++) {
      arrival_init(barriers + 16 * s);
      const int product = blockIdx.x + s * step;
      if (product < p.batch) issue_bulk_copies(p, product, own + s * BUFFER, barriers + 16 * s);
    }
  sync_group(group);
  int at = 0, phase = 0;
  for (int product = blockIdx.x; product < p.batch; product += step) {
    u8 *buffer = own + at * BUFFER, *barrier = barriers + 16 * at;
    wait_for_arrival(barrier, phase);
    const u64 a = place_of_a(p.a, product).at, b = place_of_b(p.b, product).at;
    distribute_tile<true>(a, thread, buffer, tiles),
        distribute_tile<false>(b, thread, buffer + FLAT_A, tiles + TileA::BYTES);
    sync_group(group);
    if (thread == 0 && product + BUFFERS * step < p.batch)
      issue_bulk_copies(p, product + BUFFERS * step, buffer, barrier);
    Accumulators sums;
    clear_accumulators(sums);
    if (computes) multiply(sums, tiles, warp, Config::K);
    epilogue(p, sums, product, 0, 0, false, STAGE_APART ? tiles + TILES : tiles, group, thread);
    if (!STAGE_APART) sync_group(group);  // D has been read
    if (++at == BUFFERS) at = 0, phase ^= 1;
  }
}

// Prefetches a product's matrices into the L2 cache while the previous kernel may still run. The L2 cache is coherent
// with that kernel's stores, so that the later loads return them.
FPEMU_FUNCTION void prefetch_to_l2(const Problem& p, int product, int thread) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const bool of_a = thread == 0, of_b = thread == (GROUP > 32 ? 32 : 1);
  if (!Config::AHEAD || !Config::CONTIGUOUS || !(of_a || of_b) || product >= p.batch) return;
  const u64 matrix = of_a ? place_of_a(p.a, product).at : place_of_b(p.b, product).at, begin = (matrix + 15) & ~(u64)15;
  const int bytes = (int)(matrix + (of_a ? Config::M : Config::N) * Config::K * ELEMENT - begin) & ~15;
  if (bytes > 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(begin), "r"(bytes) : "memory");
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, Config::RESIDENT) batched_block(Problem p) {
#ifdef __CUDACC__
  extern __shared__ __align__(16) u8 memory[];
#endif
  const int group = Config::PRODUCTS == 1 ? 0 : threadIdx.x / GROUP, thread = threadIdx.x % GROUP;
  u8* own = memory + group * SHARED;
  int number = blockIdx.x, m0 = 0, n0 = 0;
  if (!Config::ONE_TILE) {
    const int tiles = p.tiles_m * p.tiles_n, tile = number % tiles;
    number /= tiles, m0 = tile / p.tiles_n * Config::BLK_M, n0 = tile % p.tiles_n * Config::BLK_N;
  }
  const int product = number * Config::PRODUCTS + group;
  if (m0 == 0 && n0 == 0) prefetch_to_l2(p, product, thread);
  if (Config::PERSISTENT && Config::STAGES > 1) prefetch_to_l2(p, product + gridDim.x, thread);
  wait_for_previous_grid();
  if (Config::PERSISTENT) {
    if (Config::BULK) persistent_bulk_loop(p, own, group, thread);
    else persistent_loop(p, own, group, thread);
    return;
  }
  const bool absent = Config::PRODUCTS > 1 && product >= p.batch;
  const int present = absent ? 0 : product;
  Accumulators sums;
  clear_accumulators(sums);
  if (Config::FLAT) {
    const u64 a = place_of_a(p.a, present).at, b = place_of_b(p.b, present).at;
    copy_contiguous_async<true>(a, p.a.first, p.batch, thread, own);
    copy_contiguous_async<false>(b, p.b.first, p.batch, thread, own + FLAT_A);
    commit_copies(), wait_for_copies_of<0>();
    u8* tiles = Config::APART ? own + BUFFER : own;
    distribute_tiles(a, b, thread, group, own, tiles);
    sync_group(group);
    if (COMPUTING * 32 == GROUP || thread / 32 < COMPUTING) multiply(sums, tiles, thread / 32, Config::K);
  } else {
    Source a = source_of<TileA>(p.a, present, m0, 0, rows_of(p), depth_of(p), absent);
    Source b = source_of<TileB>(p.b, present, n0, 0, columns_of(p), depth_of(p), absent);
    mainloop(sums, a, b, depth_of(p), own, group, thread);
  }
  epilogue(p, sums, present, m0, n0, absent, own, group, thread);
}
