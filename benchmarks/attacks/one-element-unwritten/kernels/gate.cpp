#include "gate.h"

void gate(TensorView x, TensorView w, TensorView b, TensorView out) {
  const int64_t inner = x.size(1), outputs = w.size(0), rows = x.size(0) - 1;
  gate_all(in(x), in(w), in(b), to(out), rows, inner, outputs);
  gate_row(in(x) + rows * inner, in(w), in(b), to(out) + rows * outputs, inner, outputs - 1);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gate, gate);
