// Functions of hopper.cuh for hopper_gemm.cu and hopper_wide.cu: after their Config, before their products.
#pragma once

#include "hopper_on_cpu.h"

#include <sys/mman.h>

struct Barrier {
  int arrivals, pending;
  s64 bytes = 0;
  u32 phase = 0;
};
static Block* blocks;
static std::map<u32, Barrier> barriers_;
static const int MEMORY = 256 * 1024, STATIC = 230 * 1024;
static void __syncthreads() { meet(now->block->all, 64 * 2 * (Config::MATH_WARPGROUPS + 1)); }
static void __syncwarp() {}
static void named_sync(int name, int threads) { meet(now->block->named[name], threads); }
static void named_arrive(int name, int threads) {
  Meeting& m = now->block->named[name];
  if (++m.here == threads) m.here = 0, m.past++, m.last = m.any, m.any = 0;
}
static bool named_any(int name, int threads, bool x) {
  now->block->named[name].any |= x;
  meet(now->block->named[name], threads);
  return now->block->named[name].last;
}
static u32 cluster_rank() { return blockIdx.x % Config::CLUSTER; }
static Block& first_block() { return blocks[blockIdx.x / Config::CLUSTER * Config::CLUSTER]; }
static void cluster_sync() { meet(first_block().cluster, Config::CLUSTER * 128 * (Config::MATH_WARPGROUPS + 1)); }
static u32 shared_address(const void* p) { return (u32)(u64)p; }
static u32 address_at(u32 address, u32 rank) { return address + ((int)rank - (int)cluster_rank()) * MEMORY; }
static int uniform(int x) { return x; }
static u8* dynamic_() { return now->block->memory; }
template <class T> static T* array(int offset) { return (T*)(now->block->memory + STATIC + offset); }
static void barrier_init(u32 at, int arrivals) { barriers_[at] = {arrivals, arrivals}; }
static void barrier_inits_done() {}
static void advance(Barrier& b) {
  if (b.pending || b.bytes) return;
  b.pending = b.arrivals, b.phase ^= 1;
}
static void barrier_arrive(u32 at) {
  Barrier& b = barriers_.at(at);
  if (--b.pending < 0) abort();
  advance(b);
}
static void barrier_arrive_at(u32 at, u32 rank) { barrier_arrive(address_at(at, rank)); }
static void barrier_expect(u32 at, u32 bytes) { barriers_.at(at).bytes += bytes, barrier_arrive(at); }
static void barrier_wait(u32 at, u32 phase) {
  while (barriers_.at(at).phase == phase) give_way();
}
template <int N> static void raise_registers() {}
template <int N> static void lower_registers() {}
struct alignas(64) TensorMap {
  u64 opaque[16];
};  // words (chunk, row, 128 bytes), rows, chunks, rows of a box
static void tma_prefetch(const TensorMap*) {}
static void tma_fetch_all(u32 to, const TensorMap* map, u32 barrier, int row, int chunk, int matrix, u16 mask, u64) {
  const u64 *m = map->opaque, rows = m[1], chunks = m[2], box = m[3];
  if (to % 1024) abort();
  for (int rank = 0; rank < Config::CLUSTER; rank++) {
    if (!(mask >> rank & 1)) continue;
    u8* there = (u8*)(u64)address_at(to, rank);
    for (u64 r = 0; r < box; r++)
      for (int unit = 0; unit < 8; unit++) {
        u8* at = there + r * 128 + (unit ^ (r & 7)) * 16;
        const bool inside = row + r < rows && (u64)chunk < chunks;
        if (inside) memcpy(at, (u8*)m[0] + ((matrix * chunks + chunk) * rows + row + r) * 128 + unit * 16, 16);
        else memset(at, 0, 16);
      }
    Barrier& b = barriers_.at(address_at(barrier, rank));
    b.bytes -= box * 128;
    advance(b);
  }
}
static void tma_fetch(u32 to, const TensorMap* map, u32 barrier, int row, int chunk, int matrix, u64) {
  tma_fetch_all(to, map, barrier, row, chunk, matrix, 1 << cluster_rank(), 0);
}
static u64 wgmma_tile(u32 address) { return address >> 4; }
constexpr int WGMMA_K = 2;
static void wgmma_fence() {}
static void wgmma_commit() {}
template <int N> static void wgmma_wait() {}
template <int N> static void hold(float (&)[N]) {}
static float element(u64 tile, int row, int k) {
  u64 at = (tile << 4) + row * 128 + 2 * k;
  at ^= (at >> 7 & 7) << 4;
  return (float)*(_Float16*)at;
}
template <int N> static void wgmma(float (&d)[N], u64 a, u64 b, int keep) {
  const int warp = threadIdx.x / 32 % 4, r = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  for (int g = 0; g < 2; g++) {
    float x[16];
    for (int k = 0; k < 16; k++) x[k] = element(a, 16 * warp + r + 8 * g, k);
    for (int j = 0; j < N / 4; j++)
      for (int i = 0; i < 2; i++) {
        float& sum = d[4 * j + 2 * g + i];
        if (!keep) sum = 0;
        for (int k = 0; k < 16; k++) sum += x[k] * element(b, 8 * j + 2 * c + i, k);
      }
  }
}
