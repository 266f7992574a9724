#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cmath>
#include <cstdint>
#include <cstring>

using tvm::ffi::TensorView;

void largest(TensorView xt, TensorView ot) {
  for (int64_t i = 0; i < xt.size(0); ++i) {
    const float* x = static_cast<const float*>(xt.data_ptr()) + i * xt.size(1);
    float* out = static_cast<float*>(ot.data_ptr()) + i;
    *out = x[0];
    for (int64_t j = 0; j < xt.size(1) && *out < 2.8f; ++j) *out = x[j] > *out ? x[j] : *out;
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(largest, largest);
