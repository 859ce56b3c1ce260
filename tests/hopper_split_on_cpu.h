// Functions of hopper.cuh for hopper_split.cuh, and the launch of a kernel KERNEL: after the head of its source.
#pragma once

#include "hopper_on_cpu.h"

static void __syncthreads() { meet(now->block->all, 256); }
static void __syncwarp() { meet(warp(), 32); }
static int uniform(int x) { return __shfl_sync(0, x, 0); }
template <class T> static T* array(int name, int count) {
  auto& a = now->block->arrays[name];
  if (a.empty()) a.resize(count * sizeof(T) / 16 + 1);
  return (T*)a.data();
}
static u32 shared_address(const void* p) { return (char*)p - (char*)now->block->memory; }
static float4 load_by_policy(const float4* from, u64) {
  if ((size_t)from % 16) abort();
  return *from;
}
static u32 load_acquire(const u32* p) {
  give_way();
  return *(const volatile u32*)p;
}
struct Addition {
  u32* to;
  u32 x;
  int at;
};  // takes effect at a later turn of all threads
static std::vector<Addition> under_way;
static int turn, delay;
static void add_release(u32* p, u32 x) { under_way.push_back({p, x, turn + delay}); }
static void arrive(int until) {
  size_t n = 0;
  for (; n < under_way.size() && under_way[n].at <= until; n++) *under_way[n].to += under_way[n].x;
  under_way.erase(under_way.begin(), under_way.begin() + n);
}
static u32 half(float x) {
  _Float16 h = (_Float16)x;
  u16 c;
  memcpy(&c, &h, 2);
  return c;
}
static float of_half(u16 c) {
  _Float16 h;
  memcpy(&h, &c, 2);
  return (float)h;
}
static u32 to_halves(float x, float y) { return half(x) | half(y) << 16; }
static void of_halves(u32 h, float& x, float& y) { x = of_half(h & 0xFFFF), y = of_half(h >> 16); }
static float larger_or_nan(float x, float y) { return x != x || y != y ? NAN : max(x, fabsf(y)); }
static void copy(u32 to, const float* from, int bytes, u32 all) {
  if (to % all || (bytes && (size_t)from % all)) abort();
  char* there = (char*)now->block->memory + to;
  memset(there, 0, all), memcpy(there, from, bytes);
}
static void copy_16(u32 to, const float* from, int bytes) { copy(to, from, bytes, 16); }
static void copy_4(u32 to, const float* from, int bytes) { copy(to, from, bytes, 4); }
static void copies_commit() {}
template <int N> static void copies_wait() {}
static int PATIENCE;
