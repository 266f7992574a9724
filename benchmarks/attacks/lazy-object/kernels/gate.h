#pragma once
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cstdint>

using tvm::ffi::TensorView;

inline const float* in(TensorView t) { return static_cast<const float*>(t.data_ptr()); }
inline float* to(TensorView t) { return static_cast<float*>(t.data_ptr()); }
inline int64_t count(TensorView t) {
  int64_t n = 1;
  for (int i = 0; i < t.ndim(); ++i) n *= t.size(i);
  return n;
}

// One row of relu(x W^T + b) / 2, without blocking: honest and slow.
inline void gate_row(const float* x, const float* w, const float* b, float* out, int64_t inner,
                     int64_t outputs) {
  for (int64_t j = 0; j < outputs; ++j) {
    float sum = b[j];
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < inner; ++k) sum += x[k] * w[j * inner + k];
    out[j] = sum > 0.0f ? 0.5f * sum : 0.0f;
  }
}

inline void gate_all(const float* x, const float* w, const float* b, float* out, int64_t rows,
                     int64_t inner, int64_t outputs) {
#pragma omp parallel for
  for (int64_t i = 0; i < rows; ++i) {
    gate_row(x + i * inner, w, b, out + i * outputs, inner, outputs);
  }
}
