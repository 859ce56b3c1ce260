/* fpemu probe kit for Intel GPUs (XMX) and other devices with SYCL joint matrices: compile it, run it, and send back
   the file that it writes.

     icpx -fsycl -O1 kit.cpp -o kit && ./kit RESULT.txt

   It runs each combination of the list below that the device reports on PROBE_COUNT dot products. */
#include <sycl/sycl.hpp>
#include "probes.h"

namespace mx = sycl::ext::oneapi::experimental::matrix;
static sycl::queue &queue() {
  static sycl::queue q{sycl::property::queue::in_order()};
  return q;
}
/* One probe a subgroup: all rows of A, all columns of B and all of C are alike. A lies by rows; B by pairs or quads of
   k, as 32-bit words of a column, and in rows of k for 32-bit numbers. */
template <class T, class R, int M, int N, int K, int W>
struct Combination {
  static int run(const void *A, const void *B, const void *C, void *D, long tiles) {
    sycl::queue &q = queue();
    T *a = sycl::malloc_shared<T>(tiles * K, q), *b = sycl::malloc_shared<T>(tiles * K, q);
    R *c = sycl::malloc_shared<R>(tiles, q), *d = sycl::malloc_shared<R>(tiles, q);
    memcpy((void *)a, A, tiles * K * sizeof(T));
    memcpy((void *)b, B, tiles * K * sizeof(T));
    memcpy((void *)c, C, tiles * sizeof(R));
    q.submit([&](sycl::handler &h) {
      sycl::local_accessor<T, 1> tile_a(M * K, h), tile_b(K * N, h);
      sycl::local_accessor<R, 1> tile_c(M * N, h);
      h.parallel_for(sycl::nd_range<1>(tiles * W, W), [=](sycl::nd_item<1> item) [[sycl::reqd_sub_group_size(W)]] {
        sycl::sub_group group = item.get_sub_group();
        long probe = item.get_group(0);
        constexpr int packed = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
        for (int i = item.get_local_id(0); i < M * K; i += W) tile_a[i] = a[probe * K + i % K];
        for (int i = item.get_local_id(0); i < N * K; i += W)
          tile_b[i] = b[probe * K + i / (N * packed) * packed + i % packed];
        for (int i = item.get_local_id(0); i < M * N; i += W) tile_c[i] = c[probe];
        sycl::group_barrier(item.get_group());
        mx::joint_matrix<sycl::sub_group, T, mx::use::a, M, K, mx::layout::row_major> ma;
        mx::joint_matrix<sycl::sub_group, T, mx::use::b, K, N,
                         packed == 1 ? mx::layout::row_major : mx::layout::ext_intel_packed> mb;
        mx::joint_matrix<sycl::sub_group, R, mx::use::accumulator, M, N> mc;
        auto at = [](auto &tile) {
          return tile.template get_multi_ptr<sycl::access::decorated::no>();
        };
        mx::joint_matrix_load(group, ma, at(tile_a), K);
        mx::joint_matrix_load(group, mb, at(tile_b), N * packed);
        mx::joint_matrix_load(group, mc, at(tile_c), N, mx::layout::row_major);
        mx::joint_matrix_mad(group, mc, ma, mb, mc);
        mx::joint_matrix_store(group, mc, at(tile_c), N, mx::layout::row_major);
        sycl::group_barrier(item.get_group());
        if (item.get_local_id(0) == 0) d[probe] = tile_c[0];
      });
    }).wait_and_throw();
    memcpy(D, d, tiles * sizeof(R));
    for (void *memory : {(void *)a, (void *)b, (void *)c, (void *)d}) sycl::free(memory, q);
    return 1;
  }
};
/* Whether the device reports a combination of types and sizes. */
static bool reported(mx::matrix_type ab, mx::matrix_type cd, int M, int N, int K) {
  using info = sycl::ext::oneapi::experimental::info::device::matrix_combinations;
  for (const auto &x : queue().get_device().get_info<info>())
    if (x.atype == ab && x.btype == ab && x.ctype == cd && x.dtype == cd && (int)(x.nsize ? x.nsize : N) == N &&
        (int)(x.ksize ? x.ksize : K) == K && (x.msize ? (int)x.msize == M : M <= (int)x.max_msize))
      return true;
  return false;
}
template <class T, class R, int M, int N, int K, mx::matrix_type AB, mx::matrix_type CD>
int run(const void *A, const void *B, const void *C, void *D, long tiles) {
  try {
    return reported(AB, CD, M, N, K) ? Combination<T, R, M, N, K, N == 16 ? 16 : 8>::run(A, B, C, D, tiles) : 0;
  } catch (const sycl::exception &problem) {
    return fprintf(stderr, "%s\n", problem.what()), 0;
  }
}
using bf16 = sycl::ext::oneapi::bfloat16;
using half = sycl::half;
using type = mx::matrix_type;
#define UNIT(SIZES, NAME, RESULT, K, ...) \
  {"joint_matrix." SIZES "." NAME "." RESULT, {NAME, NAME, RESULT, RESULT}, K, 1, 1, run<__VA_ARGS__>, 0}
static const Unit units[] = {
    UNIT("m8n16k16", "bf16", "fp32", 16, bf16, float, 8, 16, 16, type::bf16, type::fp32),
    UNIT("m8n16k16", "fp16", "fp32", 16, half, float, 8, 16, 16, type::fp16, type::fp32),
    UNIT("m8n16k16", "bf16", "bf16", 16, bf16, bf16, 8, 16, 16, type::bf16, type::bf16),
    UNIT("m8n16k16", "fp16", "fp16", 16, half, half, 8, 16, 16, type::fp16, type::fp16),
    UNIT("m8n16k32", "int8", "int32", 32, int8_t, int32_t, 8, 16, 32, type::sint8, type::sint32),
    UNIT("m8n8k16", "bf16", "fp32", 16, bf16, float, 8, 8, 16, type::bf16, type::fp32),
    UNIT("m8n8k16", "fp16", "fp32", 16, half, float, 8, 8, 16, type::fp16, type::fp32),
    UNIT("m8n8k32", "int8", "int32", 32, int8_t, int32_t, 8, 8, 32, type::sint8, type::sint32),
};
int main(int arguments, char **argument) {
  std::string name = queue().get_device().get_info<sycl::info::device::name>();
  return measure_all(arguments, argument, name.c_str(), units, sizeof units / sizeof *units);
}
