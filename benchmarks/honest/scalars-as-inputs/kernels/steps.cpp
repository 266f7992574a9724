#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cmath>
#include <cstdint>
#include <cstring>

using tvm::ffi::TensorView;

void steps(TensorView xt, TensorView ot, double alpha, int64_t count) {
  const float* x = static_cast<const float*>(xt.data_ptr());
  float* out = static_cast<float*>(ot.data_ptr());
  const int64_t n = xt.size(0) * xt.size(1);
  const float factor = static_cast<float>(alpha);
#pragma omp parallel for
  for (int64_t i = 0; i < n; ++i) {
    float value = x[i];
    for (int64_t step = 0; step < count; ++step) value = value * factor + 0.5f;
    out[i] = value;
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(steps, steps);
