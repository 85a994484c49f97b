// Every operation that is not written here: the CPU's kernel, run on aliases.
#include "fallback.h"

#include "generator.h"
#include "memory.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

namespace pretend {
using c10::Argument, c10::Device, c10::DispatchKey, c10::IValue, c10::OperatorHandle;
using torch::jit::Stack;

namespace {
using Values = c10::ArrayRef<IValue>;
using OptionalTensor = std::optional<Tensor>;

// f(tensor, its argument) for each tensor among the arguments.
template <typename F>
void for_each_tensor(const std::vector<Argument>& declared, Values values, F f) {
  for (size_t i = 0; i < declared.size(); ++i) {
    const auto& value = values[i];
    if (value.isTensor()) {
      f(value.toTensor(), declared[i]);
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      for (const IValue& each : value.toListRef())
        if (each.isTensor())
          f(each.toTensor(), declared[i]);
    }
  }
}

// The same value with every tensor replaced by f(tensor).
template <typename F>
void replace_tensors(IValue& value, F f) {
  if (value.isTensor()) {
    const Tensor& replaced = f(value.toTensor());
    if (!replaced.is_same(value.toTensor()))
      value = replaced;
  } else if (value.isTensorList()) {
    c10::List<Tensor> replaced;
    replaced.reserve(value.toListRef().size());
    for (const IValue& each : value.toListRef())
      replaced.push_back(f(each.toTensor()));
    value = std::move(replaced);
  } else if (value.isOptionalTensorList()) {
    c10::List<OptionalTensor> replaced;
    for (const OptionalTensor& tensor : value.toOptionalTensorList())
      replaced.push_back(tensor ? OptionalTensor(f(*tensor)) : std::nullopt);
    value = std::move(replaced);
  }
}

// Finds the device; gives the kernel the host's name for it, and a CPU generator for one of ours.
// Whether all tensors are on the device.
bool look(Call& call, const std::vector<Argument>& declared, IValue* values) {
  bool are_ours = true;
  for_each_tensor(declared, Values(values, declared.size()), [&](const Tensor& tensor, auto&) {
    call.look_at(tensor);
    are_ours = are_ours && is_pretend(tensor);
  });
  for (size_t i = 0; i < declared.size(); ++i) {
    auto& value = values[i];
    if (value.isDevice() && value.toDevice().type() == kPretend) {
      const auto device = value.toDevice();
      call.look_at(device.has_index() ? device.index() : current);
      value = Device(c10::kCPU);
    } else if (value.isGenerator()) {
      const auto generator = value.toGenerator();
      TORCH_CHECK(
          generator.device().type() == kPretend,
          "Expected a 'pretend' device type for generator but found '", generator.device().type(),
          "'");
      value = of(generator).next();
    }
  }
  return are_ours;
}

// The indices of x[i]; the numbers of _foreach_addcdiv_ and the like.
bool may_be_on_host(const Argument& argument) {
  const auto* list = argument.type()->castRaw<c10::ListType>();
  return argument.name() == "scalars" ||
      (list && list->getElementType()->kind() == c10::TypeKind::OptionalType);
}

// A tensor on the host that has to be on the device is refused. As on CUDA, numbers may lie there
// (tensors without dimensions), unless they are written to, and the indices of x[i].
void check(const Call& call, const Tensor& tensor, const Argument& argument) {
  if (!tensor.defined() || is_pretend(tensor))
    return;
  const bool is_written = argument.alias_info() && argument.alias_info()->isWrite();
  const bool is_number = tensor.dim() == 0;
  if (is_written || !tensor.is_cpu() || !(is_number || may_be_on_host(argument)))
    call.refuse(tensor.device(), argument.name());
}

// An operation that draws: from the generator it was given, else from the device's own.
std::optional<Lent> default_numbers(
    const OperatorHandle& op, c10::DeviceIndex device, IValue* values) {
  if (!op.hasTag(at::Tag::nondeterministic_seeded))
    return std::nullopt;
  const auto& declared = op.schema().arguments();
  for (size_t i = 0; i < declared.size(); ++i) {
    if (declared[i].name() != "generator")
      continue;
    if (values[i].isNone())
      values[i] = of(default_generator(device)).next();
    return std::nullopt;
  }
  return std::optional<Lent>(std::in_place, of(default_generator(device)).next());
}
} // namespace

void fallback(const OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const auto& declared = op.schema().arguments();
  IValue* values = stack->data() + (stack->size() - declared.size());
  Call call(op.schema().name());
  if (!look(call, declared, values))
    for_each_tensor(
        declared, Values(values, declared.size()),
        [&](const Tensor& tensor, const Argument& argument) { check(call, tensor, argument); });
  for (size_t i = 0; i < declared.size(); ++i)
    replace_tensors(values[i], [&](const Tensor& tensor) -> auto& { return call.enter(tensor); });
  {
    const auto lent = default_numbers(op, call.device(), values);
    const Computing here(call.device());
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    op.redispatchBoxed(c10::DispatchKeySet(DispatchKey::CPU), stack);
  }
  call.settle();
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i)
    replace_tensors((*stack)[i], [&](const Tensor& tensor) -> auto& { return call.leave(tensor); });
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// For some operations torch has a kernel for any device, made of other operations, which goes
// before a fallback. Where the CPU has a kernel of its own, the device takes the CPU's: the same
// numbers, and one call instead of several.
void prefer_host_kernels() {
  static auto* library = new torch::Library(
      torch::Library::IMPL, "aten", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0)
      continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(DispatchKey::CPU))
      continue;
    const bool is_made_of_others =
        op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) ||
        op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
        op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
    if (is_made_of_others && !op->hasKernelForDispatchKey(DispatchKey::PrivateUse1))
      library->impl(
          c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}
} // namespace pretend
