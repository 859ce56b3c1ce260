// The product of the scheme `staged-int8` on Hopper: hh by wgmma on fp16, both corrections by wgmma on int8.
//
// Put before this text: hopper_epilogue.cuh and staged_int8_words.cuh; fp16_product and int8_product, one wgmma of 64 rows by
// BN columns each; BN, ENTRIES, CLUSTER, PER (pieces of 64 k in a stage), EXACT (whether there are exact stages).
//
// Operands lie as staged_int8_split.cu leaves them, by pieces of 64 k: 128 bytes a row of h in fp16, and 128 of q:
// 64 qr and 64 qh of A, 64 qh and 64 qr of B, so that a dot product of such rows is qr qh + qh qr; or 64 r in fp16, in
// an exact stage. One thread block a multiprocessor works through tiles of 128 x BN: a warp that copies by TMA into a
// ring whose entries are (h_A, h_B) and (q_A, q_B) of a piece in turn, and two warpgroups that multiply, 64 rows each.
// While the tensor cores add corrections, a warpgroup promotes the sums of hh. Two thread blocks, one below the other,
// are a cluster and share B: one copies h_B for both, the other q_B.

constexpr int BM = 128, BK = 64, ROW = 128, SUMS = BN / 2;  // of C's tile a thread of a warpgroup holds so many
constexpr int TILE_A = BM * ROW, TILE_B = BN * ROW, ENTRY = TILE_A + TILE_B;
constexpr int CHUNK = 65536 / BK;  // pieces whose corrections int32 holds

struct Product {
  Task task;                     // without powers of two: rows and columns have scales
  const int *scale_a, *scale_b;  // of rows of A and columns of B, multiplied by j 2^e: 16 e + j
  int exact;                     // of so many stages one has fp16 corrections
  int matrix_a, matrix_b;        // of the stacks of operands
};

// Of a thread's sums, number 4i + 2g + n belongs to row + 8g and column + 8i + n.
template <bool NEAR>
FPEMU_FUNCTION void unscale(float (&total)[SUMS], const int (&scale_a)[2], const int (&scale_b)[SUMS / 2]) {
  float j[2], one_by_j[2];
  FPEMU_UNROLL
  for (int g = 0; g < 2; g++) j[g] = (float)(scale_a[g] & 15), one_by_j[g] = reciprocal(j[g]);
  FPEMU_UNROLL
  for (int i = 0; i < SUMS / 2; i++) {
    const float k = (float)(scale_b[i] & 15), one_by_k = reciprocal(k);
    FPEMU_UNROLL
    for (int g = 0; g < 2; g++) {
      float& x = total[i / 2 * 4 + 2 * g + i % 2];
      x = unscaled<NEAR>(x, j[g], k, one_by_j[g], one_by_k, -((scale_a[g] >> 4) + (scale_b[i] >> 4)));
    }
  }
}

FPEMU_FUNCTION void unscale(const Product& p, float (&total)[SUMS], int row, int column) {
  int scale_a[2], scale_b[SUMS / 2], least = 1 << 20, most = -(1 << 20);
  FPEMU_UNROLL
  for (int g = 0; g < 2; g++) scale_a[g] = row + 8 * g < p.task.M ? p.scale_a[row + 8 * g] : 8;
  FPEMU_UNROLL
  for (int i = 0; i < SUMS / 2; i++) {
    const int c = column + i / 2 * 8 + i % 2;
    scale_b[i] = c < p.task.N ? p.scale_b[c] : 8;
    least = smaller(least, scale_b[i] >> 4), most = larger(most, scale_b[i] >> 4);
  }
  least += smaller(scale_a[0] >> 4, scale_a[1] >> 4), most += larger(scale_a[0] >> 4, scale_a[1] >> 4);
  // sums are multiples of 2^-48, quotients not below 2^-56
  if (-least <= 127 && -most >= -70) unscale<true>(total, scale_a, scale_b); else unscale<false>(total, scale_a, scale_b);
}

extern "C" __global__ void __launch_bounds__(384, 1)
staged_int8_gemm(const __grid_constant__ TensorMap map_ha, const __grid_constant__ TensorMap map_qa,
              const __grid_constant__ TensorMap map_hb, const __grid_constant__ TensorMap map_qb,
              const __grid_constant__ Product p) {
  extern __shared__ u8 memory[];
  __shared__ u64 barriers[2 * ENTRIES];
  const u32 ring = (shared_address(memory) + 1023) & ~1023u;
  const u32 full = shared_address(barriers), empty = full + 8 * ENTRIES;
  const int group = uniform(threadIdx.x / 128), warp = uniform(threadIdx.x / 32) % 4, lane = threadIdx.x % 32;
  const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
  if (threadIdx.x == 0) {
    for (int i = 0; i < ENTRIES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 8 * CLUSTER);
    barrier_inits_done();
  }
  if (CLUSTER > 1) cluster_sync(); else __syncthreads();
  grid_release();
  grid_wait();

  const int below = (p.task.M + BM * CLUSTER - 1) / (BM * CLUSTER), beside = (p.task.N + BN - 1) / BN;
  const int tiles = below * beside, pieces = ((p.task.K + BK - 1) / BK + PER - 1) / PER * PER;
  const int first_tile = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;
  auto place = [&](int tile, int& row, int& column) {
    const int many = p.task.group * beside, which = tile / many, from = which * p.task.group;
    const int rows = smaller(below - from, p.task.group), at = tile - which * many;
    row = ((from + at % rows) * CLUSTER + (int)rank) * BM;
    column = at / rows * BN;
  };

  if (group == 0) {  // copies
    lower_registers<24>();
    if (warp == 0 && lane == 0) {
      int s = 0;
      u32 phase = 1;
      for (int tile = first_tile; tile < tiles; tile += step) {
        int row, column;
        place(tile, row, column);
        for (int half = 0; half < 2 * pieces; half++) {
          barrier_wait(empty + 8 * s, phase);
          const u32 to = ring + s * ENTRY, told = full + 8 * s;
          const TensorMap *a = half & 1 ? &map_qa : &map_ha, *b = half & 1 ? &map_qb : &map_hb;
          barrier_expect(told, ENTRY);
          tma_fetch(to, a, told, row, half / 2, p.matrix_a);
          if (CLUSTER == 1) tma_fetch(to + TILE_A, b, told, column, half / 2, p.matrix_b);
          else if ((int)rank == (half & 1)) tma_fetch_all(to + TILE_A, b, told, column, half / 2, p.matrix_b, 3);
          if (++s == ENTRIES) s = 0, phase ^= 1;
        }
      }
    }
    __syncwarp();
  } else {  // multiplies
    raise_registers<240>();
    const u32 mine = (group - 1) * (TILE_A / 2);
    int s = 0;
    u32 phase = 0;
    auto release = [&](int entry) {
      if (CLUSTER == 1) { if (lane == 0) barrier_arrive(empty + 8 * entry); }
      else if (lane < CLUSTER) barrier_arrive_at(empty + 8 * entry, lane);
    };
    auto next = [&]() { if (++s == ENTRIES) s = 0, phase ^= 1; };
    auto tile_a = [&](int entry) { return wgmma_tile(ring + entry * ENTRY + mine); };
    auto tile_b = [&](int entry) { return wgmma_tile(ring + entry * ENTRY + TILE_A); };
    for (int tile = first_tile; tile < tiles; tile += step) {
      float total[SUMS], sum[SUMS];
      int corrections[SUMS];
      FPEMU_UNROLL
      for (int i = 0; i < SUMS; i++) total[i] = 0, sum[i] = 0, corrections[i] = 0;
      auto promote = [&]() {
        hold(sum);
        FPEMU_UNROLL
        for (int i = 0; i < SUMS; i++) total[i] += sum[i];
      };
      int next_exact = 0, chunk = CHUNK;
      for (int piece = 0; piece < pieces;) {
        if (EXACT && piece == next_exact) {
          next_exact += p.exact * PER;
          FPEMU_UNROLL
          for (int part = 0; part < PER; part++, piece++) {
            const int high = s;
            const u64 ha = tile_a(s), hb = tile_b(s);
            barrier_wait(full + 8 * s, phase);
            next();
            const u64 ra = tile_a(s), rb = tile_b(s);
            barrier_wait(full + 8 * s, phase);
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
            release(s);
            next();
          }
          promote();
        }
        int until = smaller(pieces, chunk), before = -1;
        if (EXACT) until = smaller(until, next_exact);
        while (piece < until) {
          FPEMU_UNROLL
          for (int part = 0; part < PER; part++, piece++) {
            const u64 ha = tile_a(s), hb = tile_b(s);
            barrier_wait(full + 8 * s, phase);
            hold(sum);
            wgmma_fence();
            FPEMU_UNROLL
            for (int i = 0; i < 4; i++) fp16_product(sum, ha + WGMMA_K * i, hb + WGMMA_K * i, part > 0 || i > 0);
            wgmma_commit();
            const int high = s;
            next();
            const u64 qa = tile_a(s), qb = tile_b(s);
            wgmma_wait<1>();  // the corrections of the piece before are done with their entry
            hold(corrections);
            if (before >= 0) release(before);
            barrier_wait(full + 8 * s, phase);
            wgmma_fence();
            FPEMU_UNROLL
            for (int i = 0; i < 4; i++) int8_product(corrections, qa + WGMMA_K * i, qb + WGMMA_K * i, 1);
            wgmma_commit();
            wgmma_wait<1>();  // hh is done, the corrections run on
            release(high);
            before = s;
            next();
          }
          promote();
        }
        wgmma_wait<0>();
        hold(corrections);
        if (before >= 0) release(before);
        if (piece == chunk || piece == pieces) {
          FPEMU_UNROLL
          for (int i = 0; i < SUMS; i++) total[i] += (float)corrections[i], corrections[i] = 0;
          chunk += CHUNK;
        }
      }
      int row, column;
      place(tile, row, column);
      row += (group - 1) * 64;
      unscale(p, total, row + warp * 16 + lane / 4, column + 2 * (lane & 3));
      const int none[2] = {0, 0};
      store<BN>(p.task, Part(p.task, row, column, 0), total, threadIdx.x % 128, nullptr, none);
    }
  }
  if (CLUSTER > 1) __syncwarp(), cluster_sync();  // nobody leaves while others write into its shared memory
}
