// Random numbers of the device: a stream of its own, with CUDA's state.
#pragma once
#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

namespace pretend {

// The state is a seed and an offset, 16 bytes. DTensor moves the offset, so that each shard draws
// its own part of the stream. Every kernel that draws gets a CPU generator made of the two.
struct Generator final : c10::GeneratorImpl {
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;

  explicit Generator(c10::DeviceIndex device);
  at::Generator next(); // for one kernel; the offset moves on

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  Generator* clone_impl() const override;
};
Generator& of(const at::Generator& generator);

const at::Generator& default_generator(c10::DeviceIndex device); // -1: of the current device
at::Generator new_generator(c10::DeviceIndex device);

// Some kernels that draw, as native_dropout's, take no generator. While this lives, the CPU's own
// generator draws what `lent` would.
class Lent {
 public:
  explicit Lent(const at::Generator& lent);
  ~Lent();

 private:
  void fill(at::CPUGeneratorImpl& from);
  at::CPUGeneratorImpl* host_;
  std::shared_ptr<at::CPUGeneratorImpl> kept_;
};
} // namespace pretend
