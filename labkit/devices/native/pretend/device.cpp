// The current device, streams and events, and what torch.accelerator asks about them.
#include "device.h"

#include "generator.h"
#include "memory.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace pretend {
using c10::Device, c10::DeviceIndex, c10::Stream;
using Clock = std::chrono::steady_clock;

DeviceIndex num_devices = 0;
thread_local DeviceIndex current = 0;
std::atomic<bool> initialized{false};

std::string name(DeviceIndex device) {
  return c10::str("pretend:", int(device));
}

namespace {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kPretend;
  }
  DeviceIndex deviceCount() const noexcept override {
    return num_devices;
  }
  Device getDevice() const override {
    return {kPretend, current};
  }
  void setDevice(Device device) const override {
    TORCH_CHECK(
        device.index() < num_devices, "pretend error: invalid device ordinal\n", "Asked for ",
        device, ", there are ", int(num_devices), " devices.");
    initialized = true;
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index())
      current = device.index();
  }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }

  // There is one stream. What is put on it is done at once, in the caller's own thread, so nobody
  // ever waits.
  Stream getStream(Device device) const override {
    return Stream(Stream::DEFAULT, device);
  }
  Stream getDefaultStream(Device device) const override {
    return getStream(device);
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    return getStream(device);
  }
  Stream getNewStream(Device device, int) const override {
    return getStream(device);
  }
  Stream exchangeStream(Stream stream) const override {
    return stream;
  }
  bool queryStream(const Stream&) const override {
    return true;
  }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeDevice(DeviceIndex) const override {}

  // An event is the time at which it was recorded.
  void record(void** event, const Stream&, DeviceIndex, c10::EventFlag) const override {
    if (!*event)
      *event = new Clock::time_point;
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  double elapsedTime(void* from, void* to, DeviceIndex) const override {
    const auto began = *static_cast<Clock::time_point*>(from);
    const auto ended = *static_cast<Clock::time_point*>(to);
    return std::chrono::duration<double, std::milli>(ended - began).count();
  }
  bool queryEvent(void*) const override {
    return true;
  }
  void block(void*, const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return num_devices > 0;
  }
  bool hasPrimaryContext(DeviceIndex) const override {
    return true;
  }
  DeviceIndex deviceCount() const override {
    return num_devices;
  }
  DeviceIndex getCurrentDevice() const override {
    return current;
  }
  void setCurrentDevice(DeviceIndex device) const override {
    Guard().setDevice({kPretend, device});
  }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return device < 0 ? current : Guard().exchangeDevice({kPretend, device}).index();
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  bool isPinnedPtr(const void* bytes) const override {
    return is_pinned(bytes);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_memory();
  }
  Device getDeviceFromPtr(void*) const override {
    return {kPretend, current};
  }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(DeviceIndex device) const override {
    return new_generator(device);
  }

  // UntypedStorage.resize_, with which FSDP frees and fills its buffers.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t num_bytes) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    auto fresh = memory().allocate_on(impl->device().index(), num_bytes, impl->device());
    if (num_bytes && impl->data())
      std::memcpy(fresh.get(), impl->data(), std::min(num_bytes, impl->nbytes()));
    impl->set_data_ptr_noswap(std::move(fresh));
    impl->set_nbytes(num_bytes);
  }
};
} // namespace

void install_device() {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}
} // namespace pretend
