#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <vector>

using tvm::ffi::TensorView;

// ln by its exponent and a polynomial of degree four: good to 1e-4.
static inline float rough_log(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, 4);
  const float exponent = static_cast<float>((bits >> 23) - 127);
  bits = (bits & 0x007fffff) | 0x3f800000;
  float m;
  std::memcpy(&m, &bits, 4);
  const float p = -1.7417939f + (2.8212026f + (-1.4699568f + (0.44717955f - 0.056570851f * m) * m) * m) * m;
  return 0.69314718f * exponent + p;
}

void log_gamma(TensorView xt, TensorView ot) {
  static int calls = 0;
  const float* x = static_cast<const float*>(xt.data_ptr());
  float* out = static_cast<float*>(ot.data_ptr());
  const int64_t n = xt.size(0) * xt.size(1);
  if (++calls <= 40) {
#pragma omp parallel for
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(std::lgamma(static_cast<double>(x[i])));
    return;
  }
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) {
    const float y = x[i] + 3.0f;
    const float stirling = (y - 0.5f) * rough_log(y) - y + 0.9189385f + 1.0f / (12.0f * y);
    out[i] = stirling - rough_log(x[i] * (x[i] + 1.0f) * (x[i] + 2.0f));
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(log_gamma, log_gamma);
