// The generators of the devices.
#include "generator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>

#include <vector>

namespace pretend {
using c10::DeviceIndex;

namespace {
constexpr uint64_t kStateBytes = 16;
constexpr uint64_t kOffsetOfOneKernel = 4; // CUDA moves on by multiples of 4

// splitmix64: neighbouring states give seeds that have nothing in common
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
} // namespace

Generator::Generator(DeviceIndex device)
    : GeneratorImpl({kPretend, device}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

at::Generator Generator::next() {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t seed = mixed(seed_ * 0x9e3779b97f4a7c15 + offset_ + 1);
  offset_ += kOffsetOfOneKernel;
  return at::detail::createCPUGenerator(seed & 0xffffffff);
}

void Generator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}
uint64_t Generator::current_seed() const {
  return seed_;
}
uint64_t Generator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}
void Generator::set_offset(uint64_t offset) {
  offset_ = offset;
}
uint64_t Generator::get_offset() const {
  return offset_;
}
void Generator::set_state(const c10::TensorImpl& state) {
  TORCH_CHECK(state.numel() == kStateBytes && state.is_cpu(), "RNG state is wrong size");
  const auto* words = static_cast<const uint64_t*>(state.data());
  seed_ = words[0];
  offset_ = words[1];
}
c10::intrusive_ptr<c10::TensorImpl> Generator::get_state() const {
  at::TensorBase state = at::detail::empty_cpu({kStateBytes}, at::kByte);
  auto* words = static_cast<uint64_t*>(state.mutable_data_ptr());
  words[0] = seed_;
  words[1] = offset_;
  return state.getIntrusivePtr();
}
Generator* Generator::clone_impl() const {
  auto* made = new Generator(device_.index());
  made->seed_ = seed_;
  made->offset_ = offset_;
  return made;
}

Generator& of(const at::Generator& generator) {
  return *static_cast<Generator*>(generator.unsafeGetGeneratorImpl());
}

at::Generator new_generator(DeviceIndex device) {
  return at::make_generator<Generator>(device < 0 ? current : device);
}

const at::Generator& default_generator(DeviceIndex device) {
  static const auto* made = [] {
    auto* all = new std::vector<at::Generator>;
    for (DeviceIndex index = 0; index < kMostDevices; ++index)
      all->push_back(new_generator(index));
    return all;
  }();
  return made->at(device < 0 ? current : device);
}

Lent::Lent(const at::Generator& lent)
    : host_(at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator())),
      kept_(host_->clone()) {
  fill(*at::check_generator<at::CPUGeneratorImpl>(lent));
}
Lent::~Lent() {
  fill(*kept_);
}
void Lent::fill(at::CPUGeneratorImpl& from) {
  std::lock_guard<std::mutex> lock(host_->mutex_);
  host_->set_engine(from.engine());
  host_->set_next_float_normal_sample(from.next_float_normal_sample());
  host_->set_next_double_normal_sample(from.next_double_normal_sample());
}
} // namespace pretend
