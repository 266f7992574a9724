#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

using tvm::ffi::TensorView;

#if defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("unroll-loops")
#endif
void polynomial(TensorView xt, TensorView ot) {
  const float* __restrict__ x = static_cast<const float*>(xt.data_ptr());
  float* __restrict__ out = static_cast<float*>(ot.data_ptr());
  const int64_t n = xt.size(0) * xt.size(1);
  int64_t i = 0;
#if defined(__AVX2__)
  const __m256 one = _mm256_set1_ps(1.0f);
  for (; i + 8 <= n; i += 8) {
    const __m256 y = _mm256_add_ps(_mm256_loadu_ps(x + i), one);
    _mm256_storeu_ps(out + i, _mm256_mul_ps(y, y));
  }
#endif
  for (; i < n; ++i) out[i] = (x[i] + 1.0f) * (x[i] + 1.0f);
}
#if defined(__GNUC__)
#pragma GCC pop_options
#endif

TVM_FFI_DLL_EXPORT_TYPED_FUNC(polynomial, polynomial);
