// Every operation that is not written here: the CPU's kernel, run on aliases.
#pragma once
#include "aliases.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace pretend {
void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);
} // namespace pretend
