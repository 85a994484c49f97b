// gloo for tensors of a device: a c10d backend around gloo's, which gets tensors of the host in their place.
//
// Of a device whose bytes lie in host memory it gets aliases: the same bytes as a CPU tensor. Of any other it gets
// copies. What a call reads is copied when it is called, after everything that the calling stream has to do; what
// it writes is copied back once: by who waits for it (wait, synchronize, an is_completed that says yes), in their
// thread, or by its future. Who does none of that never sees the result.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

#include <mutex>

namespace through_host {
using at::Tensor;
using Tensors = std::vector<Tensor>;
using Lists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// The CPU's tensor over the same bytes; it keeps them as long as it lives.
Tensor host_alias(const Tensor& tensor) {
  auto keep = [storage = tensor.storage()](void*) {};
  auto options = at::TensorOptions(at::kCPU).dtype(tensor.scalar_type());
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), keep, options);
}

// A tensor of the host with the same shape and strides.
Tensor host_like(const Tensor& tensor) {
  auto options = at::TensorOptions(at::kCPU).dtype(tensor.scalar_type());
  return at::empty_strided(tensor.sizes(), tensor.strides(), options);
}

// Ends when the device has done what the calling stream was given: the bytes of a tensor that this stream made
// may until then be in use by what had them before.
void synchronize_stream(c10::Device device) {
  c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

// Raw bytes, as gloo writes them: autograd does not hear of it.
void copy_bytes(const Tensor& to, const Tensor& from) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  Tensor(to).copy_(from);
}

// What comes back from the host, once.
struct Results {
  std::vector<std::pair<Tensor, Tensor>> pairs; // on the device, on the host
  std::once_flag once;

  void copy_back() {
    std::call_once(once, [this] {
      for (auto& [device, host] : pairs)
        copy_bytes(device, host);
      pairs.clear();
    });
  }
};

// gloo's work; it is done when the results are on the device.
struct Work final : c10d::Work {
  WorkPtr inner;
  std::shared_ptr<Results> results;
  c10::IValue value; // the device's tensors, as gloo's future gives the host's

  Work(WorkPtr gloo, std::shared_ptr<Results> results, c10::IValue value)
      : c10d::Work(-1, gloo->retrieveOpType()), inner(std::move(gloo)), results(std::move(results)),
        value(std::move(value)) {}

  bool isCompleted() override {
    const bool completed = inner->isCompleted();
    if (completed && inner->isSuccess())
      results->copy_back();
    return completed;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = inner->wait(timeout); // throws what the call threw
    if (done)
      results->copy_back();
    return done;
  }
  void synchronize() override {
    wait(kNoTimeout);
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    // the copies back are complete when their calls return, so nobody need wait for a stream
    auto finish = [results = results, value = value](c10::ivalue::Future& gloo) {
      gloo.value(); // throws what the call threw
      results->copy_back();
      return value;
    };
    return inner->getFuture()->then(finish, value.type());
  }
  Tensors result() override {
    return value.isTensorList() ? value.toTensorVector() : Tensors();
  }
  bool isSuccess() const override {
    return inner->isSuccess();
  }
  std::exception_ptr exception() const override {
    return inner->exception();
  }
  int sourceRank() const override {
    return inner->sourceRank();
  }
  uint64_t getSequencenumber() const override {
    return inner->getSequencenumber();
  }
  void abort() override {
    inner->abort();
  }
};

// One call of a collective: makes the host's tensors, and in the end the work.
class Call {
 public:
  Call(c10::DeviceType type, bool copies) : type(type), copies(copies) {}

  // of a tensor that the call reads, writes, or changes
  Tensor read(const Tensor& tensor) {
    check(tensor);
    if (!copies)
      return host_alias(tensor);
    auto host = host_like(tensor);
    copy_bytes(host, tensor); // after the calling stream
    return host;
  }
  Tensor write(const Tensor& tensor) {
    check(tensor);
    if (!copies)
      return host_alias(tensor);
    synchronize_stream(tensor.device());
    return results->pairs.emplace_back(tensor, host_like(tensor)).second;
  }
  Tensor change(const Tensor& tensor) {
    auto host = read(tensor);
    if (copies)
      results->pairs.emplace_back(tensor, host);
    return host;
  }
  template <typename T>
  std::vector<T> read(const std::vector<T>& tensors) {
    return each(tensors, [this](const T& one) { return read(one); });
  }
  template <typename T>
  std::vector<T> write(const std::vector<T>& tensors) {
    return each(tensors, [this](const T& one) { return write(one); });
  }
  template <typename T>
  std::vector<T> change(const std::vector<T>& tensors) {
    return each(tensors, [this](const T& one) { return change(one); });
  }

  WorkPtr work(WorkPtr inner, const Tensors& value) {
    return c10::make_intrusive<Work>(std::move(inner), results, value);
  }
  WorkPtr work(WorkPtr inner, const Lists& value) {
    if (value.size() == 1)
      return work(std::move(inner), value[0]);
    return c10::make_intrusive<Work>(std::move(inner), results, value);
  }

 private:
  c10::DeviceType type;
  bool copies;
  std::shared_ptr<Results> results = std::make_shared<Results>();

  // NCCL's rules. gloo takes any memory from where a tensor begins, and so gives wrong sums for a[::2].
  void check(const Tensor& tensor) {
    TORCH_CHECK_VALUE(tensor.device().type() == type, "every tensor of this call must be on a device of type ",
        c10::DeviceTypeName(type, /*lower_case=*/true), "; got one on ", tensor.device());
    TORCH_CHECK_VALUE(tensor.is_contiguous(tensor.suggest_memory_format()), "tensors must be contiguous; got one of shape [",
        joined(tensor.sizes()), "] and strides [", joined(tensor.strides()), "]. Make it so: tensor.contiguous()");
  }
  // Lists become words here: with torch 2.11 its own message, and c10::Join, break down on them.
  static std::string joined(c10::IntArrayRef numbers) {
    std::string words;
    for (const int64_t number : numbers)
      words += (words.empty() ? "" : ", ") + std::to_string(number);
    return words;
  }
  template <typename T, typename F>
  static std::vector<T> each(const std::vector<T>& tensors, F made_of) {
    std::vector<T> made;
    for (const auto& one : tensors)
      made.push_back(made_of(one));
    return made;
  }
};

struct Backend final : c10d::Backend {
  c10::intrusive_ptr<c10d::Backend> inner;
  std::string name;
  c10::DeviceType type;
  bool copies;

  Backend(c10::intrusive_ptr<c10d::Backend> gloo, std::string name, c10::DeviceType type, bool copies)
      : c10d::Backend(gloo->getRank(), gloo->getSize()), inner(std::move(gloo)), name(std::move(name)), type(type),
        copies(copies) {}

  const std::string getBackendName() const override {
    return name;
  }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return inner->getBackendOptions();
  }
  void setTimeout(std::chrono::milliseconds timeout) override {
    inner->setTimeout(timeout);
  }
  void setSequenceNumberForGroup() override {
    inner->setSequenceNumberForGroup();
  }
  uint64_t getSequenceNumberForGroup() override {
    return inner->getSequenceNumberForGroup();
  }
  void abort() override {
    inner->abort();
  }
  void shutdown() override {
    inner->shutdown();
  }

  Call call() const {
    return Call(type, copies);
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    auto c = call();
    auto host = c.change(tensors);
    return c.work(inner->broadcast(host, options), tensors);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    auto c = call();
    auto host = c.change(tensors);
    return c.work(inner->allreduce(host, options), tensors);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    auto c = call();
    auto host = c.change(tensors);
    return c.work(inner->allreduce_coalesced(host, options), tensors);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    auto c = call();
    auto host = c.change(tensors);
    return c.work(inner->reduce(host, options), tensors);
  }
  WorkPtr allgather(Lists& out, Tensors& in, const c10d::AllgatherOptions& options) override {
    auto c = call();
    auto to = c.write(out);
    auto from = c.read(in);
    return c.work(inner->allgather(to, from, options), out);
  }
  WorkPtr _allgather_base(Tensor& out, Tensor& in, const c10d::AllgatherOptions& options) override {
    auto c = call();
    auto to = c.write(out);
    auto from = c.read(in);
    return c.work(inner->_allgather_base(to, from, options), Tensors{out});
  }
  WorkPtr allgather_coalesced(Lists& out, Tensors& in, const c10d::AllgatherOptions& options) override {
    auto c = call();
    auto to = c.write(out);
    auto from = c.read(in);
    return c.work(inner->allgather_coalesced(to, from, options), out);
  }
  WorkPtr allgather_into_tensor_coalesced(
      Tensors& out, Tensors& in, const c10d::AllgatherOptions& options) override {
    auto c = call();
    auto to = c.write(out);
    auto from = c.read(in);
    return c.work(inner->allgather_into_tensor_coalesced(to, from, options), out);
  }
  WorkPtr gather(Lists& out, Tensors& in, const c10d::GatherOptions& options) override {
    auto c = call();
    auto to = c.write(out);
    auto from = c.read(in);
    return c.work(inner->gather(to, from, options), out);
  }
  WorkPtr scatter(Tensors& out, Lists& in, const c10d::ScatterOptions& options) override {
    auto c = call();
    auto to = c.write(out);
    auto from = c.read(in);
    return c.work(inner->scatter(to, from, options), out);
  }
  WorkPtr reduce_scatter(Tensors& out, Lists& in, const c10d::ReduceScatterOptions& options) override {
    auto c = call();
    auto to = c.write(out);
    auto from = c.read(in);
    return c.work(inner->reduce_scatter(to, from, options), out);
  }
  WorkPtr _reduce_scatter_base(Tensor& out, Tensor& in, const c10d::ReduceScatterOptions& options) override {
    auto c = call();
    auto to = c.write(out);
    auto from = c.read(in);
    return c.work(inner->_reduce_scatter_base(to, from, options), Tensors{out});
  }
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& out, Tensors& in, const c10d::ReduceScatterOptions& options) override {
    auto c = call();
    auto to = c.write(out);
    auto from = c.read(in);
    return c.work(inner->reduce_scatter_tensor_coalesced(to, from, options), out);
  }
  WorkPtr alltoall_base(Tensor& out, Tensor& in, std::vector<int64_t>& out_sizes, std::vector<int64_t>& in_sizes,
                        const c10d::AllToAllOptions& options) override {
    auto c = call();
    auto to = c.write(out);
    auto from = c.read(in);
    return c.work(inner->alltoall_base(to, from, out_sizes, in_sizes, options), Tensors{out});
  }
  WorkPtr alltoall(Tensors& out, Tensors& in, const c10d::AllToAllOptions& options) override {
    auto c = call();
    auto to = c.write(out);
    auto from = c.read(in);
    return c.work(inner->alltoall(to, from, options), out);
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    auto c = call();
    auto host = c.read(tensors);
    return c.work(inner->send(host, to, tag), tensors);
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    auto c = call();
    auto host = c.write(tensors);
    return c.work(inner->recv(host, from, tag), tensors);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    auto c = call();
    auto host = c.write(tensors);
    return c.work(inner->recvAnysource(host, tag), tensors);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return inner->barrier(options);
  }
};

} // namespace through_host

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("backend", [](c10d::Backend& gloo, std::string name, c10::Device device, bool copies, std::string group) {
    auto inner = c10::intrusive_ptr<c10d::Backend>::reclaim_copy(&gloo);
    inner->setGroupUid(group); // under which the flight recorder files its calls
    auto made = c10::make_intrusive<through_host::Backend>(inner, std::move(name), device.type(), copies);
    return c10::intrusive_ptr<c10d::Backend>(std::move(made));
  });
}
