/* fpemu probe kit for AMD GPUs (CDNA): compile it for your GPU, run it, and send back the file that it writes.

     hipcc -O1 --offload-arch=gfx942 kit.hip -o kit && ./kit RESULT.txt

   It runs each instruction of the list below that the GPU has on PROBE_COUNT dot products.
   --offload-arch: gfx908 (MI100), gfx90a (MI200), gfx942 (MI300), gfx950 (MI350). */
#include <hip/hip_runtime.h>
#include "probes.h"

typedef float float2_ __attribute__((ext_vector_type(2)));
typedef float float4_ __attribute__((ext_vector_type(4)));
typedef double double4_ __attribute__((ext_vector_type(4)));
typedef int int4_ __attribute__((ext_vector_type(4)));
typedef short short2_ __attribute__((ext_vector_type(2)));
typedef short short4_ __attribute__((ext_vector_type(4)));
typedef _Float16 half4_ __attribute__((ext_vector_type(4)));
typedef _Float16 half8_ __attribute__((ext_vector_type(8)));
typedef __bf16 bf8_ __attribute__((ext_vector_type(8)));

#if defined(__gfx908__)
#define ARCH 1
#elif defined(__gfx90a__)
#define ARCH 2
#elif defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__)
#define ARCH 3
#elif defined(__gfx950__)
#define ARCH 4
#else
#define ARCH 0
#endif

/* One probe a wave: all rows of A, all columns of B and all of C are alike, so that D is one number wherever a lane
   holds it. Lanes 16 g to 16 g + 15 hold the g-th quarter of k, of A and of B. */
template <class U, class AB = typename U::AB, class CD = typename U::CD, class E = typename U::E>
__global__ void tile(const AB *A, const AB *B, const E *C, E *D, int *ran) {
  AB a = A[blockIdx.x * 4 + threadIdx.x / 16], b = B[blockIdx.x * 4 + threadIdx.x / 16];
  E c = C[blockIdx.x];
  CD d = {c, c, c, c};
  if (U::issue(a, b, d) && threadIdx.x == 0) *ran = 1;
  if (threadIdx.x == 0) D[blockIdx.x] = d[0];
}
static void check(hipError_t status) {
  if (status != hipSuccess) exit((fprintf(stderr, "%s: is --offload-arch that of this GPU?\n", hipGetErrorString(status)), 1));
}
template <class U>
int run(const void *A, const void *B, const void *C, void *D, long tiles) {
  const void *from[4] = {A, B, C, D};
  void *at[4];
  size_t sizes[4] = {4 * sizeof(typename U::AB), 4 * sizeof(typename U::AB), sizeof(typename U::E), sizeof(typename U::E)};
  int *flag, ran = 0;
  check(hipMalloc((void **)&flag, sizeof ran));
  check(hipMemset(flag, 0, sizeof ran));
  for (int n = 0; n < 4; n++) {
    check(hipMalloc(&at[n], tiles * sizes[n]));
    check(hipMemcpy(at[n], from[n], tiles * sizes[n], hipMemcpyHostToDevice));
  }
  tile<U><<<dim3(tiles), dim3(64)>>>((typename U::AB *)at[0], (typename U::AB *)at[1], (typename U::E *)at[2],
                                     (typename U::E *)at[3], flag);
  check(hipGetLastError());
  check(hipMemcpy(&ran, flag, sizeof ran, hipMemcpyDeviceToHost));
  check(hipMemcpy(D, at[3], tiles * sizes[3], hipMemcpyDeviceToHost));
  for (int n = 0; n < 4; n++) check(hipFree(at[n]));
  check(hipFree(flag));
  return ran;
}
/* An instruction: type of a lane's part of A and B, of C and D, of an entry; and its result. */
#define DEFINE(NAME, AB_, CD_, E_, CALL)                                      \
  struct NAME {                                                              \
    typedef AB_ AB;                                                          \
    typedef CD_ CD;                                                          \
    typedef E_ E;                                                            \
    static __device__ int issue(AB a, AB b, CD &d) { return CALL; }          \
  };
#define MFMA(SUFFIX) (d = __builtin_amdgcn_mfma_##SUFFIX(a, b, d, 0, 0, 0), 1)
#if ARCH
#define ALL(SUFFIX) MFMA(SUFFIX)
#else
#define ALL(SUFFIX) 0
#endif
#if ARCH == 1 || ARCH == 2
#define CDNA12(SUFFIX) MFMA(SUFFIX)
#else
#define CDNA12(SUFFIX) 0
#endif
#if ARCH >= 2
#define CDNA2(SUFFIX) MFMA(SUFFIX)
#else
#define CDNA2(SUFFIX) 0
#endif
#if ARCH == 3
#define CDNA3_ONLY(SUFFIX) MFMA(SUFFIX)
#define FP8_FNUZ(SUFFIX) MFMA(SUFFIX)
#define FP8(SUFFIX) 0
#elif ARCH == 4
#define CDNA3_ONLY(SUFFIX) 0
#define FP8_FNUZ(SUFFIX) 0
#define FP8(SUFFIX) MFMA(SUFFIX)
#else
#define CDNA3_ONLY(SUFFIX) 0
#define FP8_FNUZ(SUFFIX) 0
#define FP8(SUFFIX) 0
#endif
#if ARCH >= 3
#define CDNA3(SUFFIX) MFMA(SUFFIX)
#else
#define CDNA3(SUFFIX) 0
#endif
#if ARCH == 4
#define CDNA4(SUFFIX) MFMA(SUFFIX)
#else
#define CDNA4(SUFFIX) 0
#endif
/* Architectures, suffix of the name, formats of A, B, D, k, and types */
#define UNITS(X)                                                                      \
  X(U0, ALL, f32_16x16x4f32, "fp32", "fp32", "fp32", 4, float, float4_, float)         \
  X(U1, ALL, f32_16x16x16f16, "fp16", "fp16", "fp32", 16, half4_, float4_, float)      \
  X(U2, CDNA12, f32_16x16x8bf16, "bf16", "bf16", "fp32", 8, short2_, float4_, float)   \
  X(U3, CDNA2, f32_16x16x16bf16_1k, "bf16", "bf16", "fp32", 16, short4_, float4_, float) \
  X(U4, CDNA2, f64_16x16x4f64, "fp64", "fp64", "fp64", 4, double, double4_, double)    \
  X(U5, CDNA3_ONLY, f32_16x16x8_xf32, "tf32", "tf32", "fp32", 8, float2_, float4_, float) \
  X(U6, FP8_FNUZ, f32_16x16x32_fp8_fp8, "e4m3fnuz", "e4m3fnuz", "fp32", 32, long, float4_, float) \
  X(U7, FP8_FNUZ, f32_16x16x32_fp8_bf8, "e4m3fnuz", "e5m2fnuz", "fp32", 32, long, float4_, float) \
  X(U8, FP8_FNUZ, f32_16x16x32_bf8_fp8, "e5m2fnuz", "e4m3fnuz", "fp32", 32, long, float4_, float) \
  X(U9, FP8_FNUZ, f32_16x16x32_bf8_bf8, "e5m2fnuz", "e5m2fnuz", "fp32", 32, long, float4_, float) \
  X(U10, FP8, f32_16x16x32_fp8_fp8, "e4m3", "e4m3", "fp32", 32, long, float4_, float) \
  X(U11, FP8, f32_16x16x32_bf8_bf8, "e5m2", "e5m2", "fp32", 32, long, float4_, float) \
  X(U12, CDNA4, f32_16x16x32_f16, "fp16", "fp16", "fp32", 32, half8_, float4_, float) \
  X(U13, CDNA4, f32_16x16x32_bf16, "bf16", "bf16", "fp32", 32, bf8_, float4_, float)  \
  X(U14, CDNA12, i32_16x16x16i8, "int8", "int8", "int32", 16, int, int4_, int)        \
  X(U15, CDNA3, i32_16x16x32_i8, "int8", "int8", "int32", 32, long, int4_, int)
#define STRUCT(NAME, WHERE, SUFFIX, A, B, D, K, AB, CD, E) DEFINE(NAME, AB, CD, E, WHERE(SUFFIX))
#define LIST(NAME, WHERE, SUFFIX, A, B, D, K, AB, CD, E) {"mfma." #SUFFIX, {A, B, D, D}, K, 1, 1, run<NAME>, 0},
UNITS(STRUCT)
static const Unit units[] = {UNITS(LIST)};
int main(int arguments, char **argument) {
  hipDeviceProp_t gpu;
  check(hipGetDeviceProperties(&gpu, 0));
  return measure_all(arguments, argument, gpu.gcnArchName, units, sizeof units / sizeof *units);
}
