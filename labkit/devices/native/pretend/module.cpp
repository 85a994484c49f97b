// What Python calls: labkit/devices/pretend.py and torch_pretend.py.
#include "device.h"
#include "generator.h"
#include "memory.h"
#include "operations.h"

#include <ATen/ops/empty.h>
#include <pybind11/pybind11.h>

namespace {

// Before this there are no devices, and the process is as if the library were not loaded.
void install(int num_devices, int index, size_t memory_bytes) {
  TORCH_CHECK(
      0 <= index && index < num_devices && num_devices <= pretend::kMostDevices,
      "a process sees 1 to ", int(pretend::kMostDevices), " pretend devices, one of them its own");
  pretend::num_devices = num_devices;
  pretend::current = index;
  pretend::memory().set_limit(memory_bytes);
  pretend::install_memory();
  pretend::install_device();
}

void set_link(double bytes_per_s, double latency_s) {
  pretend::host_link.bytes_per_s = bytes_per_s;
  pretend::host_link.latency_s = latency_s;
}

pybind11::tuple copied() {
  const auto& link = pretend::host_link;
  return pybind11::make_tuple(
      link.to_device_bytes.load(), link.to_host_bytes.load(), link.crossings.load(),
      link.crossing_ns.load());
}

void reset_copied() {
  auto& link = pretend::host_link;
  link.to_device_bytes = 0;
  link.to_host_bytes = 0;
  link.crossings = 0;
  link.crossing_ns = 0;
}

void seed(int device, uint64_t seed) {
  pretend::of(pretend::default_generator(device)).set_current_seed(seed);
}

pybind11::tuple random_state(int device) {
  const auto& generator = pretend::of(pretend::default_generator(device));
  return pybind11::make_tuple(generator.seed_, generator.offset_);
}

void set_random_state(int device, uint64_t seed, uint64_t offset) {
  auto& generator = pretend::of(pretend::default_generator(device));
  generator.set_current_seed(seed);
  generator.set_offset(offset);
}

// torch runs a backward in a thread of the device's, which takes one task after another. While
// Python ends, it may still be freeing the last task; if that holds a Python object, the thread
// asks for the interpreter's lock and the process aborts ("terminate called without an active
// exception"). Once it has done a later task that holds none, the earlier ones are gone.
void let_backward_end() {
  const pybind11::gil_scoped_release others_may_run;
  for (int index = 0; index < pretend::num_devices; ++index) {
    const c10::Device device(pretend::kPretend, c10::DeviceIndex(index));
    const auto options = at::TensorOptions().device(device);
    at::Tensor leaf = at::empty({0}, options); // no bytes: it fits into a full memory
    leaf.set_requires_grad(true);
    leaf.backward(at::empty({0}, options));
  }
}
} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  pretend::prefer_host_kernels();
  module.def("install", &install);
  module.def("is_initialized", [] { return pretend::initialized.load(); });
  module.def("device_count", [] { return int(pretend::num_devices); });
  module.def("set_link", &set_link);
  module.def("copied", &copied);
  module.def("reset_copied", &reset_copied);
  module.def("seed", &seed);
  module.def("random_state", &random_state);
  module.def("set_random_state", &set_random_state);
  module.def("let_backward_end", &let_backward_end);
}
