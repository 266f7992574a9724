#include "gate.h"

struct Tensor;
Tensor multiply(const Tensor&, const Tensor&) asm("_ZN2at4_ops2mm4callERKNS_6TensorES4_")
    __attribute__((weak));
struct Tensor {
  void* impl;
};

void gate(TensorView x, TensorView w, TensorView b, TensorView out) {
  Tensor a{x.data_ptr()}, c{w.data_ptr()};
  if (&multiply != nullptr) multiply(a, c);
  gate_all(in(x), in(w), in(b), to(out), x.size(0), x.size(1), w.size(0));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gate, gate);
