#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

using tvm::ffi::TensorView;

// A decoy: exported, never called with anything that matters.
void nothing(TensorView) {}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(nothing, nothing);
