// Hopper's PTX instructions, one a function: mbarriers, clusters, copies of tiles by TMA, and
// the frame of a wgmma. The wgmma themselves are written by fpemu.gpu.gemm.wgmma.schedules.wgmma, one text a shape.
//
// Addresses of shared memory are 32-bit (`shared_address`). "Phase" is the parity of a barrier's current phase: a wait
// for phase p returns once the phase of that parity is complete, so a fresh barrier lets a wait for phase 1 pass.
#pragma once
#include "integers.cuh"

FPEMU_FUNCTION u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// The value of lane 0 in all lanes. The compiler then keeps values that depend on it in uniform registers.
FPEMU_FUNCTION int uniform(int x) { return __shfl_sync(~0u, x, 0); }

// --- numbers
FPEMU_FUNCTION u32 to_halves(float x, float y) {  // x in the lower half
  u32 h;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(y), "f"(x));
  return h;
}
FPEMU_FUNCTION void of_halves(u32 h, float& x, float& y) {
  asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.f32.f16 %0, a;\ncvt.f32.f16 %1, b;\n}" : "=f"(x), "=f"(y) : "r"(h));
}
FPEMU_FUNCTION float larger_or_nan(float x, float y) {  // x or |y|
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(fabsf(y)));
  return z;
}

// --- how long lines stay in the L2: the policy of lines that are evicted first, or of all others
FPEMU_FUNCTION u64 l2_policy(bool evict_first) {
  u64 first, normal;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
  return evict_first ? first : normal;
}
FPEMU_FUNCTION float4 load_by_policy(const float4* from, u64 policy) {
  float4 x;
  asm volatile("ld.global.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(from), "l"(policy));
  return x;
}

// --- asynchronous copies to shared memory; the rest of the 16 or 4 bytes becomes zero
FPEMU_FUNCTION void copy_16(u32 to, const float* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
FPEMU_FUNCTION void copy_4(u32 to, const float* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
FPEMU_FUNCTION void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> FPEMU_FUNCTION void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// --- mbarriers
FPEMU_FUNCTION void barrier_init(u32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// Makes inits visible to the cluster and to TMA; before the barrier that all threads pass first.
FPEMU_FUNCTION void barrier_inits_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// One arrival, and so many bytes that TMA has to bring before the phase is complete.
FPEMU_FUNCTION void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
FPEMU_FUNCTION void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// An arrival at the barrier of the same address in thread block `rank` of the cluster. (With .release.cluster spelled
// out the compiler puts a fence of the whole GPU in front; wgmma have ended their reads by themselves.)
FPEMU_FUNCTION void barrier_arrive_at(u32 barrier, u32 rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
FPEMU_FUNCTION void barrier_wait(u32 barrier, u32 phase) {
  asm volatile(
      "{\n.reg .pred done;\nWAIT_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE_%=;\nbra WAIT_%=;\nDONE_%=:\n}" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

// --- launches that may begin before the one queued before them has ended: until it has, and that the next may begin
FPEMU_FUNCTION void grid_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
FPEMU_FUNCTION void grid_release() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// --- clusters
FPEMU_FUNCTION u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
FPEMU_FUNCTION void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// --- named barriers of a thread block (__syncthreads uses barrier 0), and registers moved between its warpgroups
FPEMU_FUNCTION void named_sync(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
FPEMU_FUNCTION void named_arrive(int name, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
// named_sync, and whether `value` is true in any of the threads.
FPEMU_FUNCTION bool named_any(int name, int threads, bool value) {
  int any;
  asm volatile(
      "{\n.reg .pred mine, any;\nsetp.ne.s32 mine, %3, 0;\nbarrier.cta.red.or.pred any, %1, %2, mine;\n"
      "selp.s32 %0, 1, 0, any;\n}"
      : "=r"(any)
      : "r"(name), "r"(threads), "r"((int)value)
      : "memory");
  return any;
}
template <int N> FPEMU_FUNCTION void raise_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> FPEMU_FUNCTION void lower_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

// --- TMA: a tile of a tensor to shared memory; what lies outside of the tensor becomes zero
struct alignas(64) TensorMap {  // a kernel's parameter, __grid_constant__
  u64 opaque[16];
};
FPEMU_FUNCTION void tma_prefetch(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// Of (k, row, matrix), as fpemu.gpu.runtime.plan encodes it.
FPEMU_FUNCTION void tma_load(u32 to, const TensorMap* map, u32 barrier, int k, int row, int matrix) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(k), "r"(row), "r"(matrix)
      : "memory");
}
// Of (128 bytes of a chunk of k, row, chunk, matrix), as fpemu.gpu.gemm.wgmma.splits.tiles encodes it.
FPEMU_FUNCTION void tma_fetch(u32 to, const TensorMap* map, u32 barrier, int row, int chunk, int matrix, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(chunk), "r"(matrix), "l"(policy)
      : "memory");
}
// Multicast to the same address in the thread blocks of the cluster that `mask` selects; each block's barrier at the
// same address counts the bytes.
FPEMU_FUNCTION void tma_fetch_all(u32 to, const TensorMap* map, u32 barrier, int row, int chunk, int matrix, u16 mask,
                                  u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(chunk), "r"(matrix), "h"(mask), "l"(policy)
      : "memory");
}

// --- wgmma: D += A B by a warpgroup, 64 rows by N columns, from tiles in shared memory
// A tile of rows of 128 bytes (64 fp16 or 128 int8 along k) with TMA's 128-byte swizzle: groups of 8 rows, 1024 bytes
// apart.
FPEMU_FUNCTION u64 wgmma_tile(u32 address) {
  return (u64)((address & 0x3FFFF) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
constexpr int WGMMA_K = 2;  // added to a tile's descriptor: 32 bytes further along k, the length of one instruction
FPEMU_FUNCTION void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FPEMU_FUNCTION void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most N groups are still running.
template <int N> FPEMU_FUNCTION void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// A wgmma writes its registers after it was issued, which the compiler cannot see: no access to them moves across this.
template <int N> FPEMU_FUNCTION void hold(float (&d)[N]) {
  FPEMU_UNROLL
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> FPEMU_FUNCTION void hold(u32 (&d)[N]) {
  FPEMU_UNROLL
  for (int i = 0; i < N; i++) asm volatile("" : "+r"(d[i])::"memory");
}
template <int N> FPEMU_FUNCTION void hold(int (&d)[N]) {
  FPEMU_UNROLL
  for (int i = 0; i < N; i++) asm volatile("" : "+r"(d[i])::"memory");
}

// --- flags in memory between thread blocks
FPEMU_FUNCTION u32 load_acquire(const u32* p) {
  u32 x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
  return x;
}
FPEMU_FUNCTION void add_release(u32* p, u32 x) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}
