// Loads, stores and asynchronous copies of the tall-and-skinny kernels, 16 bytes a thread where alignment permits.
#pragma once
#include "tallskinny.cuh"

constexpr int VECTOR = 16 / sizeof(REAL);
struct alignas(16) Vector {
  REAL of[VECTOR];
};

// 16 bytes that are read once, or written and not read again.
FPEMU_FUNCTION void load_vector(const float* p, float (&v)[4]) {
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "l"(p));
}
FPEMU_FUNCTION void load_vector(const double* p, double (&v)[2]) {
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v2.f64 {%0, %1}, [%2];" : "=d"(v[0]), "=d"(v[1]) : "l"(p));
}
FPEMU_FUNCTION void store_vector(float* p, const float (&v)[4]) {
  const float4 x = {v[0], v[1], v[2], v[3]};
  __stcs((float4*)p, x);
}
FPEMU_FUNCTION void store_vector(double* p, const double (&v)[2]) {
  const double2 x = {v[0], v[1]};
  __stcs((double2*)p, x);
}
FPEMU_FUNCTION Vector load_once(const REAL* p) {
  Vector v;
  load_vector(p, v.of);
  return v;
}
FPEMU_FUNCTION void store_once(REAL* p, const Vector& v) { store_vector(p, v.of); }

// So many elements, at most 16 bytes, to shared memory.
template <int COUNT> FPEMU_FUNCTION void copy(REAL* to, const REAL* from) {
  const u32 address = (u32)__cvta_generic_to_shared(to);
  if (COUNT == VECTOR) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"((int)sizeof(REAL) * COUNT)
                 : "memory");
}
// The copies of this thread have been made.
FPEMU_FUNCTION void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// An arrival at a barrier once they have been.
FPEMU_FUNCTION void arrive_copied(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
