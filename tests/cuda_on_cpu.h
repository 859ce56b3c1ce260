// Kernels on the processor, for tests without a GPU: a block's threads are fibers that take turns at every barrier and at
// every operation of a whole warp, and mma.sync is the emulation of kernels/arithmetic.cuh. Before the kernel's text.
#pragma once

#include "fibers.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

struct Three {
  unsigned x, y, z;
};
static Three threadIdx, blockIdx, blockDim, gridDim;
struct float4 {
  float x, y, z, w;
};
struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace simulation {
constexpr int LANES = 32;
static std::vector<Fiber> fibers;
static Fiber scheduler;
static unsigned current, arrived;
static unsigned long long barrier;
struct Warp {
  unsigned arrived;
  unsigned long long turn;
  unsigned char given[LANES][64];
};
static std::vector<Warp> warps;
static void (*body)(void*);
static void* argument;

inline void give_way() { continue_fiber(fibers[current], scheduler); }
static void begin() {
  body(argument);
  fibers[current].done = true;
  give_way();
}
// Wait for all lanes of the warp.
inline void meet() {
  Warp& w = warps[current / LANES];
  const unsigned long long turn = w.turn;
  if (++w.arrived == LANES) w.arrived = 0, w.turn++;
  while (w.turn == turn) give_way();
}
// What each lane of the warp gives, seen by all; `seen` is called between two meetings.
template <class T, class F> inline void exchange(const T& mine, F seen) {
  static_assert(sizeof(T) <= 64, "larger than a lane's place");
  Warp& w = warps[current / LANES];
  std::memcpy(w.given[current % LANES], &mine, sizeof mine);
  meet();
  seen([&w](int lane) {
    T x;
    std::memcpy(&x, w.given[lane], sizeof x);
    return x;
  });
  meet();
}

static void block(unsigned threads) {
  fibers.resize(threads), warps.assign((threads + LANES - 1) / LANES, Warp());
  arrived = 0, barrier = 0;
  for (auto& f : fibers) f.prepare(begin);
  for (unsigned left = threads, rounds = 0; left; rounds++) {
    left = 0;
    for (current = 0; current < threads; current++) {
      if (fibers[current].done) continue;
      left++;
      threadIdx = {current, 0, 0};
      continue_fiber(scheduler, fibers[current]);
    }
  }
}

template <class... P, std::size_t... I> void call(void (*kernel)(P...), void** args, std::index_sequence<I...>) {
  kernel(*(typename std::remove_const<P>::type*)args[I]...);
}
template <class... P> void run(void (*kernel)(P...), unsigned grid, unsigned threads, void** args) {
  struct Call {
    void (*kernel)(P...);
    void** args;
  } own = {kernel, args};
  argument = &own;
  body = [](void* x) { call(((Call*)x)->kernel, ((Call*)x)->args, std::index_sequence_for<P...>()); };
  blockDim = {threads, 1, 1}, gridDim = {grid, 1, 1};
  for (unsigned b = 0; b < grid; b++) blockIdx = {b, 0, 0}, block(threads);
}
}  // namespace simulation

inline void __syncthreads() {
  using namespace simulation;
  const unsigned long long before = barrier;
  if (++arrived == fibers.size()) arrived = 0, barrier++;
  while (barrier == before) give_way();
}

#define FPEMU_KERNEL(NAME)                                                   \
  extern "C" void run_##NAME(unsigned grid, unsigned threads, void** args) { \
    simulation::run(NAME, grid, threads, args);                              \
  }
