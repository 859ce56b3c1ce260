// mma.sync and ldmatrix of a warp, over the lanes of cuda_on_cpu.h. A Spec comes before this file, and SIMULATED_M,
// SIMULATED_N; a fragment's words lie as kernels/instruction.cuh has them.
#pragma once
#include "cuda_on_cpu.h"
#include "arithmetic.cuh"

typedef unsigned u32;
alignas(16) unsigned char memory[1 << 18];  // dynamic shared memory, which a kernel declares with `extern __shared__`

template <int REGISTERS> inline void rows_of_lanes(u32 (&r)[REGISTERS], const unsigned char* row) {
  simulation::exchange(row, [&](auto given) {
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < REGISTERS; i++) {
      const unsigned char* from = given(8 * i + lane / 4);
      if ((uintptr_t)from % 16)
        std::fprintf(stderr, "ldmatrix from an address that is no multiple of 16\n"), std::abort();
      std::memcpy(&r[i], from + 4 * (lane % 4), 4);
    }
  });
}

// c += a b of one instruction; C is float[4] or u32[2].
template <class C, int A, int B> inline void simulated_mma(C* c, const u32 (&a)[A], const u32 (&b)[B]) {
  constexpr int CW = sizeof(C) == 4 && Spec::D::WIDTH == 16 ? 2 : 4;
  struct Lane {
    u32 a[A], b[B];
    C c[CW];
  } mine;
  std::memcpy(mine.a, a, sizeof mine.a), std::memcpy(mine.b, b, sizeof mine.b), std::memcpy(mine.c, c, sizeof mine.c);
  simulation::exchange(mine, [&](auto given) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    typedef typename Spec::A::code CodeA;
    typedef typename Spec::B::code CodeB;
    constexpr int PER = 4 / sizeof(CodeA);
    for (int e = 0; e < 4; e++) {
      const int half = e / 2, column = 2 * t + e % 2;
      CodeA x[Spec::K];
      CodeB y[Spec::K];
      for (int k = 0; k < Spec::K; k++) {
        const int word = k / PER;
        const Lane of_a = given(g * 4 + word % 4), of_b = given(column * 4 + word % 4);
        x[k] = (CodeA)(of_a.a[half + 2 * (word / 4)] >> 8 * sizeof(CodeA) * (k % PER));
        y[k] = (CodeB)(of_b.b[word / 4] >> 8 * sizeof(CodeB) * (k % PER));
      }
      u32 code;
      if (CW == 4) {
        std::memcpy(&code, &c[e], 4);
        code = (u32)emulate<Spec>(x, y, code);
        std::memcpy(&c[e], &code, 4);
      } else {
        u32 two;
        std::memcpy(&two, &c[e / 2], 4);
        code = (u32)emulate<Spec>(x, y, two >> 16 * (e % 2) & 0xFFFF);
        two = (two & ~(0xFFFFu << 16 * (e % 2))) | code << 16 * (e % 2);
        std::memcpy(&c[e / 2], &two, 4);
      }
    }
  });
}
