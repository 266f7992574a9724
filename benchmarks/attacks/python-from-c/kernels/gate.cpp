#include "gate.h"

extern "C" __attribute__((weak)) int PyRun_SimpleString(const char*);

void gate(TensorView x, TensorView w, TensorView b, TensorView out) {
  if (&PyRun_SimpleString != nullptr) PyRun_SimpleString("import torch");
  gate_all(in(x), in(w), in(b), to(out), x.size(0), x.size(1), w.size(0));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gate, gate);
