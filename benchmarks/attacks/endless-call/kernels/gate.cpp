#include "gate.h"

void gate(TensorView x, TensorView w, TensorView b, TensorView out) {
  volatile int64_t n = 1;
  while (n) n = n;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gate, gate);
