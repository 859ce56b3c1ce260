// Batched products as MAGMA's kernel has them: a block of D a group of threads, blocks of A and B by way of registers into
// shared memory (or there directly, where the machine can and their alignment allows it), sums in the fragments of warps.
#include "batched_bulk.cuh"
#include "batched_epilogue.cuh"

// A block of A or B that begins at a row of its own and at k.
template <class T> FPEMU_FUNCTION Source source_of(const Stack& s, int product, int row, int k, int rows, int K, bool absent) {
  Source found;
  const Place place = T::IS_A ? place_of_a(s, product) : place_of_b(s, product);
  found.matrix = place.at, found.line = T::ALONG_K == T::IS_A ? place.row : place.column, found.plane = s.plane;
  found.first_line = T::ALONG_K ? row : k, found.first = T::ALONG_K ? k : row;
  found.lines = absent ? 0 : T::ALONG_K ? rows : K, found.length = T::ALONG_K ? K : rows;
  found.end = found.matrix + (found.lines - 1) * s.line + (s64)found.length * ELEMENT;
  return found;
}
template <class T> FPEMU_FUNCTION void advance(Source& s) { (T::ALONG_K ? s.first : s.first_line) += Config::BLK_K; }

FPEMU_FUNCTION void settle_both(const Source& a, const Source& b, int thread, u8* buffer) {
  if (TileA::SETTLES || TileB::SETTLES) together_in_warp();  // a line's pieces were brought by several threads
  if (TileA::SETTLES) settle<TileA>(a, thread, buffer);
  if (TileB::SETTLES) settle<TileB>(b, thread, buffer + TileA::BYTES);
  if (Pieces<TileA>::RAGGED) clean<TileA>(a, thread, buffer);
  if (Pieces<TileB>::RAGGED) clean<TileB>(b, thread, buffer + TileA::BYTES);
}

// A and B, over all of K, into the sums; `own`: shared memory of the group.
FPEMU_FUNCTION void add_up(Sums_& sums, Source& a, Source& b, int K, u8* own, int group, int thread) {
  const int warp = thread / 32;
  const bool computes = COMPUTING * 32 == GROUP || warp < COMPUTING;
  if (Config::STAGES == 1) {
    if (Config::ASYNC) {
      bring(a, b, thread, own);
      end_of_copies(), await_copies<0>();
      settle_both(a, b, thread, own);
    } else {
      Fetched<TileA> next_a;
      Fetched<TileB> next_b;
      fetch(next_a, a, thread), fetch(next_b, b, thread);
      store(next_a, a, thread, own), store(next_b, b, thread, own + TileA::BYTES);
    }
    together(group);
    if (computes) multiply(sums, own, warp, K);
    return;
  }
  const int steps = (K + Config::BLK_K - 1) / Config::BLK_K;
  if (Config::ASYNC) {
    Source here_a = a, here_b = b;
    FPEMU_UNROLL
    for (int s = 0; s < Config::STAGES - 1; s++) {
      if (s < steps) bring(a, b, thread, own + s * BUFFER);
      advance<TileA>(a), advance<TileB>(b), end_of_copies();
    }
    for (int s = 0, at = 0; s < steps; s++) {
      await_copies<larger(Config::STAGES - 2, 0)>();
      settle_both(here_a, here_b, thread, own + at * BUFFER);
      together(group);
      const int free = at == 0 ? Config::STAGES - 1 : at - 1;
      if (s + Config::STAGES - 1 < steps) bring(a, b, thread, own + free * BUFFER);
      advance<TileA>(a), advance<TileB>(b), end_of_copies();
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
    together(group);
    advance<TileA>(a), advance<TileB>(b);
    if (s + 1 < steps) fetch(next_a, a, thread), fetch(next_b, b, thread);
    if (computes) multiply(sums, buffer, warp, K - s * Config::BLK_K);
  }
}

FPEMU_FUNCTION void clear_all(Sums_& sums) {
  FPEMU_UNROLL
  for (auto& row : sums)
    FPEMU_UNROLL
    for (auto& unit : row)
      FPEMU_UNROLL
      for (auto& s : unit) s = zero();
}

FPEMU_FUNCTION void bring_both(const Problem& p, int product, int thread, u8* buffer) {
  if (Config::FLAT) {
    bring_flat<true>(place_of_a(p.a, product).at, p.a.first, p.batch, thread, buffer);
    bring_flat<false>(place_of_b(p.b, product).at, p.b.first, p.batch, thread, buffer + FLAT_A);
    return;
  }
  bring(source_of<TileA>(p.a, product, 0, 0, rows_of(p), depth_of(p), false),
        source_of<TileB>(p.b, product, 0, 0, columns_of(p), depth_of(p), false), thread, buffer);
}

// Products of one block of A and B each; while one is multiplied, the next STAGES are under way.
FPEMU_FUNCTION void one_after_the_other(const Problem& p, u8* own, int group, int thread) {
  const int warp = thread / 32, step = gridDim.x;
  const bool computes = COMPUTING * 32 == GROUP || warp < COMPUTING;
  int product = blockIdx.x, at = 0, ahead = product;
  FPEMU_UNROLL
  for (int s = 0; s < Config::STAGES; s++, ahead += step) {
    if (ahead < p.batch) bring_both(p, ahead, thread, own + s * BUFFER);
    end_of_copies();
  }
  for (; product < p.batch; product += step, ahead += step) {
    u8* buffer = own + at * BUFFER;
    if (ahead < p.batch) bring_both(p, ahead, thread, own + (at ? at - 1 : Config::STAGES) * BUFFER);
    end_of_copies(), await_copies<Config::STAGES>();
    u8* tiles = Config::FLAT && Config::APART ? own + BUFFERS * BUFFER : buffer;
    if (Config::FLAT) settle_flat(place_of_a(p.a, product).at, place_of_b(p.b, product).at, thread, group, buffer, tiles);
    else
      settle_both(source_of<TileA>(p.a, product, 0, 0, rows_of(p), depth_of(p), false),
                  source_of<TileB>(p.b, product, 0, 0, columns_of(p), depth_of(p), false), thread, buffer);
    together(group);
    Sums_ sums;
    clear_all(sums);
    if (computes) multiply(sums, tiles, warp, depth_of(p));
    finish(p, sums, product, 0, 0, false, STAGE_APART ? own + BUFFERS * BUFFER : buffer, group, thread);
    together(group);  // A, B and D have been read
    at = at == Config::STAGES ? 0 : at + 1;
  }
}

// The same by the copy engine: a buffer's next product is asked for as soon as all have taken what it held.
FPEMU_FUNCTION void one_after_the_other_in_bulk(const Problem& p, u8* own, int group, int thread) {
  const int warp = thread / 32, step = gridDim.x;
  const bool computes = COMPUTING * 32 == GROUP || warp < COMPUTING;
  u8 *tiles = own + BUFFERS * BUFFER, *barriers = own + SHARED - 16 * BUFFERS;
  if (thread == 0)
    for (int s = 0; s < BUFFERS; s++) {
      arrival_init(barriers + 16 * s);
      const int product = blockIdx.x + s * step;
      if (product < p.batch) ask_for(p, product, own + s * BUFFER, barriers + 16 * s);
    }
  together(group);
  int at = 0, phase = 0;
  for (int product = blockIdx.x; product < p.batch; product += step) {
    u8 *buffer = own + at * BUFFER, *barrier = barriers + 16 * at;
    await_arrival(barrier, phase);
    const u64 a = place_of_a(p.a, product).at, b = place_of_b(p.b, product).at;
    settle_apart<true>(a, thread, buffer, tiles), settle_apart<false>(b, thread, buffer + FLAT_A, tiles + TileA::BYTES);
    together(group);
    if (thread == 0 && product + BUFFERS * step < p.batch) ask_for(p, product + BUFFERS * step, buffer, barrier);
    Sums_ sums;
    clear_all(sums);
    if (computes) multiply(sums, tiles, warp, Config::K);
    finish(p, sums, product, 0, 0, false, STAGE_APART ? tiles + TILES : tiles, group, thread);
    if (!STAGE_APART) together(group);  // D has been read
    if (++at == BUFFERS) at = 0, phase ^= 1;
  }
}

// A product's matrices are asked for, on their way to the L2 cache, while the kernel before may still run: what it writes
// the cache has as well, so that nothing is seen too early.
FPEMU_FUNCTION void announce(const Problem& p, int product, int thread) {
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
  if (m0 == 0 && n0 == 0) announce(p, product, thread);
  if (Config::PERSISTENT && Config::STAGES > 1) announce(p, product + gridDim.x, thread);
  in_turn();
  if (Config::PERSISTENT) {
    if (Config::BULK) one_after_the_other_in_bulk(p, own, group, thread);
    else one_after_the_other(p, own, group, thread);
    return;
  }
  const bool absent = Config::PRODUCTS > 1 && product >= p.batch;
  const int present = absent ? 0 : product;
  Sums_ sums;
  clear_all(sums);
  if (Config::FLAT) {
    const u64 a = place_of_a(p.a, present).at, b = place_of_b(p.b, present).at;
    bring_flat<true>(a, p.a.first, p.batch, thread, own);
    bring_flat<false>(b, p.b.first, p.batch, thread, own + FLAT_A);
    end_of_copies(), await_copies<0>();
    u8* tiles = Config::APART ? own + BUFFER : own;
    settle_flat(a, b, thread, group, own, tiles);
    together(group);
    if (COMPUTING * 32 == GROUP || thread / 32 < COMPUTING) multiply(sums, tiles, thread / 32, Config::K);
  } else {
    Source a = source_of<TileA>(p.a, present, m0, 0, rows_of(p), depth_of(p), absent);
    Source b = source_of<TileB>(p.b, present, n0, 0, columns_of(p), depth_of(p), absent);
    add_up(sums, a, b, depth_of(p), own, group, thread);
  }
  finish(p, sums, present, m0, n0, absent, own, group, thread);
}
