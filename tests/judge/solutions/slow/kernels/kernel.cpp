#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <vector>

using tvm::ffi::TensorView;

// The layer as it is written: every output is computed, then summed.
void linear_sum(TensorView xt, TensorView wt, TensorView bt, TensorView ot, double scale) {
  const float* x = static_cast<const float*>(xt.data_ptr());
  const float* w = static_cast<const float*>(wt.data_ptr());
  const float* b = static_cast<const float*>(bt.data_ptr());
  float* out = static_cast<float*>(ot.data_ptr());
  const int64_t rows = xt.size(0), inner = xt.size(1), outputs = wt.size(0);
#pragma omp parallel for
  for (int64_t i = 0; i < rows; ++i) {
    double total = 0.0;
    for (int64_t j = 0; j < outputs; ++j) {
      float sum = b[j];
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < inner; ++k) sum += x[i * inner + k] * w[j * inner + k];
      total += sum;
    }
    out[i] = static_cast<float>(total * scale);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear_sum, linear_sum);
