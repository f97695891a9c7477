// An accelerator for torch that is only simulated: memory that the host cannot touch, streams that work later, events,
// pinned memory. With it the staging of device tensors runs, faults included, on machines that have no accelerator.
//
// Every allocation has two addresses for the same pages: the one that tensors hold cannot be read or written, so that
// host code which follows a device pointer dies at once; copies go by the other. A stream is a thread that sleeps
// before each task, so that who does not wait for an event reads what was there before. What is no copy runs on the
// CPU by torch's own fallback.

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr auto kDelay = std::chrono::milliseconds(2);
constexpr size_t kBytes = size_t(4) << 30;  // of addresses; pages come when they are touched
constexpr size_t kPage = 4096;

// ---- memory -----------------------------------------------------------------------------------------------------

struct Memory {
  char* shown;  // what tensors hold
  char* real;   // the same pages, for copies
  std::mutex lock;
  std::map<char*, size_t> used;
  std::map<size_t, std::deque<char*>> free;
  size_t next = 0;

  Memory() {
    int file = memfd_create("simulated accelerator", MFD_CLOEXEC);
    TORCH_CHECK(file >= 0 && ftruncate(file, kBytes) == 0, "no memory for the simulated accelerator");
    shown = static_cast<char*>(mmap(nullptr, kBytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0));
    real = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0));
    TORCH_CHECK(shown != MAP_FAILED && real != MAP_FAILED, "no addresses for the simulated accelerator");
    close(file);
  }

  char* take(size_t bytes) {
    size_t whole = (std::max(bytes, size_t(1)) + kPage - 1) / kPage * kPage;
    std::lock_guard<std::mutex> hold(lock);
    auto& old = free[whole];
    char* found;
    if (old.empty()) {
      TORCH_CHECK(next + whole <= kBytes, "the simulated accelerator has no memory left");
      found = shown + next;
      next += whole;
    } else {
      found = old.front();
      old.pop_front();
    }
    used[found] = whole;
    return found;
  }

  void give(void* address) {
    std::lock_guard<std::mutex> hold(lock);
    auto found = used.find(static_cast<char*>(address));
    free[found->second].push_back(found->first);
    used.erase(found);
  }
};

Memory& memory() {
  static Memory* all = new Memory;
  return *all;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    char* address = memory().take(bytes);
    return {address, address, &release, c10::Device(kType, 0)};
  }
  static void release(void* address) { memory().give(address); }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(real(to), real(from), bytes); }
  static void* real(const void* shown) {
    return memory().real + (static_cast<const char*>(shown) - memory().shown);
  }
} device_allocator;

struct PinnedAllocator final : c10::Allocator {
  static std::mutex lock;
  static std::map<const char*, size_t> used;

  c10::DataPtr allocate(size_t bytes) override {
    char* address = static_cast<char*>(malloc(std::max(bytes, size_t(1))));
    std::lock_guard<std::mutex> hold(lock);
    used[address] = std::max(bytes, size_t(1));
    return {address, address, &release, c10::Device(c10::kCPU)};
  }
  static void release(void* address) {
    std::lock_guard<std::mutex> hold(lock);
    used.erase(static_cast<char*>(address));
    free(address);
  }
  static bool holds(const void* address) {
    auto at = static_cast<const char*>(address);
    std::lock_guard<std::mutex> hold(lock);
    auto after = used.upper_bound(at);
    if (after == used.begin()) return false;
    --after;
    return at < after->first + after->second;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(to, from, bytes); }
} pinned_allocator;

std::mutex PinnedAllocator::lock;
std::map<const char*, size_t> PinnedAllocator::used;

// ---- streams and events -----------------------------------------------------------------------------------------

struct Queue {
  std::mutex lock;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  bool busy = false;

  Queue() {
    std::thread([this] { run(); }).detach();
  }
  void add(std::function<void()> task) {
    std::lock_guard<std::mutex> hold(lock);
    tasks.push_back(std::move(task));
    changed.notify_all();
  }
  bool idle() {
    std::lock_guard<std::mutex> hold(lock);
    return tasks.empty() && !busy;
  }
  void wait() {
    std::unique_lock<std::mutex> hold(lock);
    changed.wait(hold, [this] { return tasks.empty() && !busy; });
  }
  void run() {
    std::unique_lock<std::mutex> hold(lock);
    for (;;) {
      changed.wait(hold, [this] { return !tasks.empty(); });
      auto task = std::move(tasks.front());
      tasks.pop_front();
      busy = true;
      hold.unlock();
      task();
      task = nullptr;  // what it held goes before the stream counts as idle
      hold.lock();
      busy = false;
      changed.notify_all();
    }
  }
};

std::mutex queues_lock;
std::deque<Queue*> queues;
thread_local c10::StreamId current_stream = 0;

Queue& queue(c10::StreamId id) {
  std::lock_guard<std::mutex> hold(queues_lock);
  while (queues.size() <= size_t(id)) queues.push_back(new Queue);
  return *queues[id];
}

struct Mark {
  std::mutex lock;
  std::condition_variable changed;
  uint64_t asked = 0, reached = 0;

  void reach(uint64_t version) {
    std::lock_guard<std::mutex> hold(lock);
    reached = std::max(reached, version);
    changed.notify_all();
  }
  void wait(uint64_t version) {
    std::unique_lock<std::mutex> hold(lock);
    changed.wait(hold, [&] { return reached >= version; });
  }
};
using Event = std::shared_ptr<Mark>;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  using Device = c10::Device;
  using Stream = c10::Stream;
  static Stream stream(c10::StreamId id) { return Stream(Stream::UNSAFE, Device(kType, 0), id); }

  c10::DeviceType type() const override { return kType; }
  Device exchangeDevice(Device) const override { return Device(kType, 0); }
  Device getDevice() const override { return Device(kType, 0); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  Stream getStream(Device) const override { return stream(current_stream); }
  Stream getDefaultStream(Device) const override { return stream(0); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device); }
  Stream getNewStream(Device, int = 0) const override {
    size_t id;
    {
      std::lock_guard<std::mutex> hold(queues_lock);
      id = std::max(queues.size(), size_t(1));
    }
    queue(id);
    return stream(id);
  }
  Stream exchangeStream(Stream next) const override {
    auto before = stream(current_stream);
    current_stream = next.id();
    return before;
  }
  bool queryStream(const Stream& s) const override { return queue(s.id()).idle(); }
  void synchronizeStream(const Stream& s) const override { queue(s.id()).wait(); }
  void synchronizeDevice(c10::DeviceIndex) const override {
    size_t count;
    {
      std::lock_guard<std::mutex> hold(queues_lock);
      count = queues.size();
    }
    for (size_t id = 0; id < count; id++) queue(id).wait();
  }

  void record(void** event, const Stream& s, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event(std::make_shared<Mark>());
    Event mark = *static_cast<Event*>(*event);
    uint64_t version;
    {
      std::lock_guard<std::mutex> hold(mark->lock);
      version = ++mark->asked;
    }
    queue(s.id()).add([mark, version] { mark->reach(version); });
  }
  void block(void* event, const Stream& s) const override {
    if (event == nullptr) return;
    Event mark = *static_cast<Event*>(event);
    queue(s.id()).add([mark, version = asked(mark)] { mark->wait(version); });
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    Event mark = *static_cast<Event*>(event);
    std::lock_guard<std::mutex> hold(mark->lock);
    return mark->reached >= mark->asked;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    Event mark = *static_cast<Event*>(event);
    mark->wait(asked(mark));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  static uint64_t asked(const Event& mark) {
    std::lock_guard<std::mutex> hold(mark->lock);
    return mark->asked;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void* address) const override { return PinnedAllocator::holds(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  at::Device getDeviceFromPtr(void*) const override { return at::Device(kType, 0); }
} hooks;

// ---- operators --------------------------------------------------------------------------------------------------

at::Tensor empty(
    c10::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>, std::optional<at::Device>,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      size, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> type, std::optional<at::Layout>,
    std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(type));
}

// A tensor's values as the CPU may reach them.
at::Tensor within_reach(const at::Tensor& tensor) {
  if (tensor.is_cpu() || tensor.numel() == 0) return tensor;
  auto plain = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  return at::from_blob(DeviceAllocator::real(tensor.data_ptr()), tensor.sizes(), tensor.strides(), plain);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return to;
  auto& stream = queue(current_stream);
  // By their storages, since a tensor's own fields may change before the copy is made.
  at::Tensor source = from.alias(), target = to.alias();
  stream.add([source, target] {
    std::this_thread::sleep_for(kDelay);
    at::NoGradGuard without;
    within_reach(target).copy_(within_reach(source));
  });
  auto pageable = [](const at::Tensor& t) { return t.is_cpu() && !PinnedAllocator::holds(t.data_ptr()); };
  if (!non_blocking || pageable(from) || pageable(to)) stream.wait();
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.numel() == 0) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef sizes, std::optional<at::MemoryFormat>) {
  auto plain = C10_AS_INTARRAYREF_SLOW(sizes);
  size_t bytes = c10::multiply_integers(plain) * self.itemsize() + self.storage_offset() * self.itemsize();
  if (bytes > self.storage().nbytes()) {
    auto larger = device_allocator.allocate(bytes);
    device_allocator.copy_data(larger.get(), self.storage().data(), self.storage().nbytes());
    self.storage().set_data_ptr(std::move(larger));
    self.storage().set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(plain);
  return self;
}

at::Scalar local_scalar_dense(const at::Tensor& self) { return self.cpu().item(); }

at::Tensor as_strided(
    const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(self, size, stride, offset);
}

at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::cpu::set__symint(self, source, offset, size, stride);
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

const bool registered = [] {
  c10::SetAllocator(kType, &device_allocator);
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

}  // namespace
