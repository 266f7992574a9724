// Kernels for test_cpu_judge.py: one that is right, and ways to be wrong.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <cmath>
#include <cstdint>
using tvm::ffi::TensorView;

static const float* in(TensorView x) { return static_cast<const float*>(x.data_ptr()); }
static float* out(TensorView x) { return static_cast<float*>(x.data_ptr()); }
static int64_t count(TensorView x) {
  int64_t n = 1;
  for (int i = 0; i < x.ndim(); ++i) n *= x.size(i);
  return n;
}

void fast(TensorView x, TensorView y) {
  const float* a = in(x); float* b = out(y); const int64_t n = count(x);
  #pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) b[i] = a[i] * a[i] + 2.0f * a[i] + 1.0f;
}
void slow(TensorView x, TensorView y) {
  const float* a = in(x); volatile float* b = out(y); const int64_t n = count(x);
  for (int repeat = 0; repeat < 30; ++repeat)
    for (int64_t i = 0; i < n; ++i) b[i] = a[i] * a[i] + 2.0f * a[i] + 1.0f;
}
void nearly(TensorView x, TensorView y) {
  const float* a = in(x); float* b = out(y); const int64_t n = count(x);
  for (int64_t i = 0; i < n; ++i) b[i] = a[i] * a[i] + 2.0f * a[i] + 1.0f;
  b[n / 2] += 1.0f;
}
void truncated(TensorView x, TensorView y) {
  const float* a = in(x); float* b = out(y); const int64_t n = count(x);
  for (int64_t i = 0; i < n; ++i) {
    float v = a[i]; uint32_t bits; __builtin_memcpy(&bits, &v, 4);
    bits &= 0xFFFFE000u; __builtin_memcpy(&v, &bits, 4);
    b[i] = v * v + 2.0f * v + 1.0f;
  }
}
void zeroing(TensorView x, TensorView y) {
  float* a = out(x); float* b = out(y); const int64_t n = count(x);
  for (int64_t i = 0; i < n; ++i) { b[i] = a[i] * a[i] + 2.0f * a[i] + 1.0f; a[i] = 0.0f; }
}
void once(TensorView x, TensorView y) {
  static const float* seen[64]; static int known = 0;
  for (int i = 0; i < known; ++i) if (seen[i] == in(x)) {
    for (int64_t j = 0; j < count(x); ++j) out(y)[j] = 0.0f;
    return;
  }
  if (known < 64) seen[known++] = in(x);
  fast(x, y);
}
void hang(TensorView x, TensorView y) { volatile int64_t n = 1; while (n) n = n; }
void segv(TensorView x, TensorView y) { volatile float* p = out(y); p[int64_t(1) << 42] = 1.0f; }
void row_sum(TensorView x, TensorView w, TensorView b, TensorView y) {
  const float *X = in(x), *W = in(w), *B = in(b); float* Y = out(y);
  const int64_t rows = x.size(0), n = x.size(1), m = w.size(0);
  for (int64_t r = 0; r < rows; ++r) {
    double total = 0;
    for (int64_t j = 0; j < m; ++j) {
      float dot = B[j];
      for (int64_t i = 0; i < n; ++i) dot += X[r * n + i] * W[j * n + i];
      total += dot;
    }
    Y[r] = static_cast<float>(total);
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(fast, fast);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(slow, slow);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(nearly, nearly);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(truncated, truncated);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(zeroing, zeroing);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(once, once);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(hang, hang);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(segv, segv);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(row_sum, row_sum);
