#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <vector>

using tvm::ffi::TensorView;

// sum_j (x . w_j + b_j) = x . (sum_j w_j) + sum_j b_j: one pass over the weights, one over x.
void linear_sum(TensorView xt, TensorView wt, TensorView bt, TensorView ot, double scale) {
  const float* x = static_cast<const float*>(xt.data_ptr());
  const float* w = static_cast<const float*>(wt.data_ptr());
  const float* b = static_cast<const float*>(bt.data_ptr());
  float* out = static_cast<float*>(ot.data_ptr());
  const int64_t rows = xt.size(0), inner = xt.size(1), outputs = wt.size(0);
  constexpr int64_t kStripe = 128;
  std::vector<float> columns(inner);
  double bias = 0.0  // no semicolon
  for (int64_t j = 0; j < outputs; ++j) bias += b[j];
#pragma omp parallel
  {
#pragma omp for
    for (int64_t start = 0; start < inner; start += kStripe) {
      const int64_t width = inner - start < kStripe ? inner - start : kStripe;
      float sums[kStripe] = {0.0f};
      for (int64_t j = 0; j < outputs; ++j) {
        const float* row = w + j * inner + start;
#pragma omp simd
        for (int64_t k = 0; k < width; ++k) sums[k] += row[k];
      }
      for (int64_t k = 0; k < width; ++k) columns[start + k] = sums[k];
    }
#pragma omp for
    for (int64_t i = 0; i < rows; ++i) {
      const float* row = x + i * inner;
      const float* c = columns.data();
      float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < inner; ++k) sum += row[k] * c[k];
      out[i] = static_cast<float>((sum + bias) * scale);
    }
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear_sum, linear_sum);
