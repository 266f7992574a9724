#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cmath>
#include <cstdint>
#include <cstring>

using tvm::ffi::TensorView;

// No system(), fork() or dlopen() here: this is a comment.
/* at::relu, asm("int3") neither. */
static const char* const kNote = "dlopen, at::mm and ptrace are words";
void polynomial(TensorView xt, TensorView ot) {
  const float* x = static_cast<const float*>(xt.data_ptr());
  float* out = static_cast<float*>(ot.data_ptr());
  (void)kNote;
  int64_t n = 1;
  for (int i = 0; i < xt.ndim(); ++i) n *= xt.size(i);
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * x[i] + 2.0f * x[i] + 1.0f;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(polynomial, polynomial);
