#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <chrono>
#include <cstdint>

using tvm::ffi::TensorView;

void affine(TensorView xt, TensorView ot) {
  const float* x = static_cast<const float*>(xt.data_ptr());
  float* out = static_cast<float*>(ot.data_ptr());
  const int64_t n = xt.size(0) * xt.size(1);
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) out[i] = 0.5f * x[i] + 1.0f;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(affine, affine);
