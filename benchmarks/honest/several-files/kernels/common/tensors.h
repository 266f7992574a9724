#pragma once
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

namespace kernels {
using tvm::ffi::TensorView;
template <typename T = float>
inline T* pointer(const TensorView& t) {
  return static_cast<T*>(t.data_ptr());
}
}  // namespace kernels
