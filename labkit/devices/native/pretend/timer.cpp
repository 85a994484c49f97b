// DistributedDataParallel times its steps by the device's own timer, and warns where a device has none.
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace {

// Nothing is asynchronous here: the host's clock says when something was done.
class HostTimer final : public c10d::Timer {
 public:
  explicit HostTimer(c10::Device /*device*/) {}

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto from = getTimestamp(start), to = getTimestamp(end);
    if (!from || !to || *to < *from)
      return std::nullopt;
    return *to - *from;
  }
};

} // namespace

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::DeviceType::PrivateUse1, HostTimer)
} // namespace c10d
