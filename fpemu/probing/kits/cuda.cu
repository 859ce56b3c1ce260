/* fpemu probe kit for NVIDIA GPUs: compile it for your GPU, run it, and send back the file that it writes.

     nvcc -O1 -std=c++17 -arch=sm_90a kit.cu -o kit && ./kit RESULT.txt

   It runs each instruction of the list below that the GPU and -arch have on PROBE_COUNT dot products.
   -arch: sm_75, sm_80, sm_86, sm_89, sm_90a, sm_100, sm_120a. Not in the list: Volta's m8n8k4, tcgen05. */
#include "probes.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ARCH 901 /* with wgmma */
#elif defined(__CUDA_ARCH_FEAT_SM120_ALL) || defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH__ >= 1200
#define ARCH 1201 /* with formats of 6 and 4 bits */
#elif defined(__CUDA_ARCH__)
#define ARCH (__CUDA_ARCH__ / 10 * 10)
#else
#define ARCH 0
#endif

/* Fragments of every shape are one layout in words. With g = lane / 4 and t = lane % 4, a lane holds of A the words t,
   t + 4, ... of rows g and g + 8, of B those of column g, and of C the columns 2t and 2t + 1 of rows g and g + 8. */
template <class Word>
__device__ u64 in_shared_memory(const Word *B) { return 0; }
/* B for wgmma without swizzle: two core matrices of 8 columns by 16 bytes of k; the descriptor counts 16 bytes. */
template <>
__device__ u64 in_shared_memory(const unsigned *B) {
  __shared__ __align__(128) unsigned shared[64];
  for (int i = threadIdx.x; i < 64; i += blockDim.x) shared[i % 8 / 4 * 32 + i / 8 * 4 + i % 4] = B[i];
#if ARCH == 901
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  __syncthreads();
  return (__cvta_generic_to_shared(shared) & 0x3FFFF) >> 4 | 8ull << 16 | 16ull << 32;
}
template <class U, class Word = typename U::Word>
__global__ void tile(const Word *A, const Word *B, const Word *C, Word *D, int *ran) {
  constexpr int halves = U::M == 8 ? 1 : 2, steps = U::k_words / 4, pair = U::c_words / 4;
  int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, top = threadIdx.x / 32 * 16;
  Word a[halves * steps], b[steps], c[halves * pair];
  A += blockIdx.x * U::M * U::k_words, B += blockIdx.x * 8 * U::k_words;
  C += blockIdx.x * U::M * U::c_words, D += blockIdx.x * U::M * U::c_words;
#pragma unroll
  for (int i = 0; i < halves * steps; i++) a[i] = A[(top + g + 8 * (i % halves)) * U::k_words + t + 4 * (i / halves)];
#pragma unroll
  for (int i = 0; i < steps; i++) b[i] = B[g * U::k_words + t + 4 * i];
#pragma unroll
  for (int i = 0; i < halves * pair; i++) c[i] = C[(top + g + 8 * (i / pair)) * U::c_words + t * pair + i % pair];
  *ran = U::issue(a, b, c, U::M == 64 ? in_shared_memory(B) : 0);
#pragma unroll
  for (int i = 0; i < halves * pair; i++) D[(top + g + 8 * (i / pair)) * U::c_words + t * pair + i % pair] = c[i];
}
static void check(cudaError_t status) {
  if (status != cudaSuccess) exit((fprintf(stderr, "%s: is -arch that of this GPU?\n", cudaGetErrorString(status)), 1));
}
template <class U>
int run(const void *A, const void *B, const void *C, void *D, long tiles) {
  const void *from[4] = {A, B, C, D};
  typename U::Word *at[4];
  int *flag, ran = 0, words[4] = {U::M * U::k_words, 8 * U::k_words, U::M * U::c_words, U::M * U::c_words};
  check(cudaMalloc(&flag, sizeof ran));
  check(cudaMemset(flag, 0, sizeof ran));
  for (int n = 0; n < 4; n++) {
    check(cudaMalloc(&at[n], tiles * words[n] * sizeof(typename U::Word)));
    check(cudaMemcpy(at[n], from[n], tiles * words[n] * sizeof(typename U::Word), cudaMemcpyDefault));
  }
  tile<U><<<tiles, U::M == 64 ? 128 : 32>>>(at[0], at[1], at[2], at[3], flag);
  check(cudaGetLastError());
  check(cudaMemcpy(&ran, flag, sizeof ran, cudaMemcpyDefault));
  check(cudaMemcpy(D, at[3], tiles * words[3] * sizeof(typename U::Word), cudaMemcpyDefault));
  for (int n = 0; n < 4; n++) check(cudaFree(at[n]));
  return check(cudaFree(flag)), ran;
}
/* An instruction: rows of a tile, words of a row of A and of C, the architectures that have it, its text and registers. */
#define ISSUE(NAME, WORD, ROWS, K_WORDS, C_WORDS, NEEDS, TEXT, ...)       \
  struct NAME {                                                          \
    typedef WORD Word; enum { M = ROWS, k_words = K_WORDS, c_words = C_WORDS }; \
    template <int arch>                                                  \
    static __device__ int on(WORD *a, WORD *b, WORD *c, u64 shared) {    \
      if constexpr (NEEDS) asm volatile(TEXT : __VA_ARGS__ : "memory");  \
      return NEEDS;                                                      \
    }                                                                    \
    static __device__ int issue(WORD *a, WORD *b, WORD *c, u64 shared) { \
      return on<ARCH>(a, b, c, shared);                                  \
    }                                                                    \
  };
#define IN(x, i) "r"(x[i])
#define C2 "+r"(c[0]), "+r"(c[1])
#define C4 C2, "+r"(c[2]), "+r"(c[3])
#define A2 IN(a, 0), IN(a, 1)
#define A4 A2, IN(a, 2), IN(a, 3)
#define S442(NAME, NEEDS, PTX) \
  ISSUE(NAME, unsigned, 16, 8, 8, NEEDS, PTX " {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};", C4 : A4, IN(b, 0), IN(b, 1))
#define ONES ",{%10},{%11,%11},{%10},{%11,%11};" /* scales of all blocks: 1, the ue8m0 code 0x7F */
#define X442(NAME, NEEDS, PTX) ISSUE(NAME, unsigned, 16, 8, 8, NEEDS, PTX " {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3}" \
                                     ONES, C4 : A4, IN(b, 0), IN(b, 1), "r"(0x7F7F7F7F), "h"((short)0))
#define S421(NAME, NEEDS, PTX) \
  ISSUE(NAME, unsigned, 16, 4, 8, NEEDS, PTX " {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};", C4 : A2, IN(b, 0))
#define S242(NAME, NEEDS, PTX) \
  ISSUE(NAME, unsigned, 16, 8, 4, NEEDS, PTX " {%0,%1},{%2,%3,%4,%5},{%6,%7},{%0,%1};", C2 : A4, IN(b, 0), IN(b, 1))
#define S221(NAME, NEEDS, PTX) ISSUE(NAME, unsigned, 16, 4, 4, NEEDS, PTX " {%0,%1},{%2,%3},{%4},{%0,%1};", C2 : A2, IN(b, 0))
#define ASYNC(TEXT) "wgmma.fence.sync.aligned;\n" TEXT "\nwgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;"
#define W4(NAME, TAIL, PTX) \
  ISSUE(NAME, unsigned, 64, 8, 8, arch == 901, ASYNC(PTX " {%0,%1,%2,%3},{%4,%5,%6,%7},%8" TAIL ";"), C4 : A4, "l"(shared))
#define W2(NAME, TAIL, PTX) \
  ISSUE(NAME, unsigned, 64, 8, 4, arch == 901, ASYNC(PTX " {%0,%1},{%2,%3,%4,%5},%6" TAIL ";"), C2 : A4, "l"(shared))
#define L(x, i) "l"(x[i])
#define D2 "+l"(c[0]), "+l"(c[1])
#define D4 D2, "+l"(c[2]), "+l"(c[3])
#define D84(NAME, NEEDS, PTX) ISSUE(NAME, u64, 8, 4, 8, NEEDS, PTX " {%0,%1},{%2},{%3},{%0,%1};", D2 : L(a, 0), L(b, 0))
#define D164(NAME, NEEDS, PTX) \
  ISSUE(NAME, u64, 16, 4, 8, NEEDS, PTX " {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};", D4 : L(a, 0), L(a, 1), L(b, 0))
#define D168(NAME, NEEDS, PTX)                                                                   \
  ISSUE(NAME, u64, 16, 8, 8, NEEDS, PTX " {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};", \
        D4 : L(a, 0), L(a, 1), L(a, 2), L(a, 3), L(b, 0), L(b, 1))
#define D1616(NAME, NEEDS, PTX)                                                                                                \
  ISSUE(NAME, u64, 16, 16, 8, NEEDS, PTX " {%0,%1,%2,%3},{%4,%5,%6,%7,%8,%9,%10,%11},{%12,%13,%14,%15},{%0,%1,%2,%3};",        \
        D4 : L(a, 0), L(a, 1), L(a, 2), L(a, 3), L(a, 4), L(a, 5), L(a, 6), L(a, 7), L(b, 0), L(b, 1), L(b, 2), L(b, 3))
#define MMA "mma.sync.aligned."
#define MX MMA "kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32."
#define WGMMA "wgmma.mma_async.sync.aligned.m64n8k"
/* Registers; condition on the architecture, or the end of a wgmma; PTX; formats of A, B, C, D; k; unused low bits */
#define UNITS(X)                                                                               \
  X(U0, S442, arch >= 800, MMA "m16n8k16.row.col.f32.f16.f16.f32", "fp16", "fp16", "fp32", 16, 0) \
  X(U1, S242, arch >= 800, MMA "m16n8k16.row.col.f16.f16.f16.f16", "fp16", "fp16", "fp16", 16, 0) \
  X(U2, S442, arch >= 800, MMA "m16n8k16.row.col.f32.bf16.bf16.f32", "bf16", "bf16", "fp32", 16, 0) \
  X(U3, S421, arch >= 750, MMA "m16n8k8.row.col.f32.f16.f16.f32", "fp16", "fp16", "fp32", 8, 0) \
  X(U4, S221, arch >= 750, MMA "m16n8k8.row.col.f16.f16.f16.f16", "fp16", "fp16", "fp16", 8, 0) \
  X(U5, S421, arch >= 800, MMA "m16n8k8.row.col.f32.bf16.bf16.f32", "bf16", "bf16", "fp32", 8, 0) \
  X(U6, S442, arch >= 800, MMA "m16n8k8.row.col.f32.tf32.tf32.f32", "tf32", "tf32", "fp32", 8, 0) \
  X(U7, S421, arch >= 800, MMA "m16n8k4.row.col.f32.tf32.tf32.f32", "tf32", "tf32", "fp32", 4, 0) \
  X(U8, S442, arch >= 890, MMA "m16n8k32.row.col.f32.e4m3.e4m3.f32", "e4m3", "e4m3", "fp32", 32, 0) \
  X(U9, S242, arch >= 890, MMA "m16n8k32.row.col.f16.e4m3.e4m3.f16", "e4m3", "e4m3", "fp16", 32, 0) \
  X(U10, S442, arch >= 890, MMA "m16n8k32.row.col.f32.e5m2.e5m2.f32", "e5m2", "e5m2", "fp32", 32, 0) \
  X(U11, S242, arch >= 890, MMA "m16n8k32.row.col.f16.e5m2.e5m2.f16", "e5m2", "e5m2", "fp16", 32, 0) \
  X(U12, S442, arch >= 890, MMA "m16n8k32.row.col.f32.e4m3.e5m2.f32", "e4m3", "e5m2", "fp32", 32, 0) \
  X(U13, S421, arch >= 890, MMA "m16n8k16.row.col.f32.e4m3.e4m3.f32", "e4m3", "e4m3", "fp32", 16, 0) \
  X(U14, S221, arch >= 890, MMA "m16n8k16.row.col.f16.e4m3.e4m3.f16", "e4m3", "e4m3", "fp16", 16, 0) \
  X(U15, S421, arch >= 890, MMA "m16n8k16.row.col.f32.e5m2.e5m2.f32", "e5m2", "e5m2", "fp32", 16, 0) \
  X(U16, S221, arch >= 890, MMA "m16n8k16.row.col.f16.e5m2.e5m2.f16", "e5m2", "e5m2", "fp16", 16, 0) \
  X(U17, S442, arch == 1201, MMA "kind::f8f6f4.m16n8k32.row.col.f32.e3m2.e3m2.f32", "e3m2", "e3m2", "fp32", 32, 0) \
  X(U18, S242, arch == 1201, MMA "kind::f8f6f4.m16n8k32.row.col.f16.e3m2.e3m2.f16", "e3m2", "e3m2", "fp16", 32, 0) \
  X(U19, S442, arch == 1201, MMA "kind::f8f6f4.m16n8k32.row.col.f32.e2m3.e2m3.f32", "e2m3", "e2m3", "fp32", 32, 0) \
  X(U20, S242, arch == 1201, MMA "kind::f8f6f4.m16n8k32.row.col.f16.e2m3.e2m3.f16", "e2m3", "e2m3", "fp16", 32, 0) \
  X(U21, S442, arch == 1201, MMA "kind::f8f6f4.m16n8k32.row.col.f32.e2m1.e2m1.f32", "e2m1", "e2m1", "fp32", 32, 2) \
  X(U22, S242, arch == 1201, MMA "kind::f8f6f4.m16n8k32.row.col.f16.e2m1.e2m1.f16", "e2m1", "e2m1", "fp16", 32, 2) \
  X(U23, D84, arch >= 800, MMA "m8n8k4.row.col.f64.f64.f64.f64", "fp64", "fp64", "fp64", 4, 0) \
  X(U24, D164, arch >= 900, MMA "m16n8k4.row.col.f64.f64.f64.f64", "fp64", "fp64", "fp64", 4, 0) \
  X(U25, D168, arch >= 900, MMA "m16n8k8.row.col.f64.f64.f64.f64", "fp64", "fp64", "fp64", 8, 0) \
  X(U26, D1616, arch >= 900, MMA "m16n8k16.row.col.f64.f64.f64.f64", "fp64", "fp64", "fp64", 16, 0) \
  X(U27, S442, arch >= 800, MMA "m16n8k32.row.col.s32.s8.s8.s32", "int8", "int8", "int32", 32, 0) \
  X(U28, S421, arch >= 800, MMA "m16n8k16.row.col.s32.s8.s8.s32", "int8", "int8", "int32", 16, 0) \
  X(U29, W4, ", 1, 1, 1, 0", WGMMA "16.f32.f16.f16", "fp16", "fp16", "fp32", 16, 0) \
  X(U30, W2, ", 1, 1, 1, 0", WGMMA "16.f16.f16.f16", "fp16", "fp16", "fp16", 16, 0) \
  X(U31, W4, ", 1, 1, 1, 0", WGMMA "16.f32.bf16.bf16", "bf16", "bf16", "fp32", 16, 0) \
  X(U32, W4, ", 1, 1, 1", WGMMA "8.f32.tf32.tf32", "tf32", "tf32", "fp32", 8, 0) \
  X(U33, W4, ", 1, 1, 1", WGMMA "32.f32.e4m3.e4m3", "e4m3", "e4m3", "fp32", 32, 0) \
  X(U34, W2, ", 1, 1, 1", WGMMA "32.f16.e4m3.e4m3", "e4m3", "e4m3", "fp16", 32, 0) \
  X(U35, W4, ", 1, 1, 1", WGMMA "32.f32.e5m2.e5m2", "e5m2", "e5m2", "fp32", 32, 0) \
  X(U36, W2, ", 1, 1, 1", WGMMA "32.f16.e5m2.e5m2", "e5m2", "e5m2", "fp16", 32, 0) \
  X(U37, W4, ", 1, 1, 1", WGMMA "32.f32.e4m3.e5m2", "e4m3", "e5m2", "fp32", 32, 0) \
  X(U38, W4, ", 1", WGMMA "32.s32.s8.s8", "int8", "int8", "int32", 32, 0) \
  X(U39, X442, arch == 1201, MX "e4m3.e4m3.f32.ue8m0", "e4m3", "e4m3", "fp32", 32, 0) \
  X(U40, X442, arch == 1201, MX "e5m2.e5m2.f32.ue8m0", "e5m2", "e5m2", "fp32", 32, 0) \
  X(U41, X442, arch == 1201, MX "e2m1.e2m1.f32.ue8m0", "e2m1", "e2m1", "fp32", 32, 2)
#define DEFINE(NAME, KIND, NEEDS, PTX, A, B, D, K, SHIFT) KIND(NAME, NEEDS, PTX)
#define LIST(NAME, KIND, NEEDS, PTX, A, B, D, K, SHIFT) {PTX, {A, B, D, D}, K, NAME::M, 8, run<NAME>, SHIFT},
UNITS(DEFINE)
static const Unit units[] = {UNITS(LIST)};
int main(int arguments, char **argument) {
  cudaDeviceProp gpu;
  check(cudaGetDeviceProperties(&gpu, 0));
  return measure_all(arguments, argument, gpu.name, units, sizeof units / sizeof *units);
}
