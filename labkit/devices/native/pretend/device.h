// The pretend device: which devices this process sees, and which of them is the current one.
//
// A tensor of "pretend:<n>" is one of torch's PrivateUse1 tensors, the key that torch keeps for
// devices it does not know. Its bytes lie in host memory, and every operation runs the CPU's kernel
// on them. What is kept of an accelerator is the separation: two memories, a limit on the device's,
// counted copies between them, and no operation that mixes the two.
//
//   device      current device, streams that are never behind, events; what torch.accelerator asks
//   memory      the allocator: counts, limit, torch.OutOfMemoryError; pinned host memory
//   generator   random numbers with CUDA's state, a seed and an offset
//   aliases     the same bytes as a CPU tensor
//   fallback    any operation: the CPU's kernel, run on aliases
//   operations  the few operations written here
//   copies      between host and device: counted, and as slow as the link is said to be
//   attention   under a name that DTensor knows
//   autocast    CUDA's own lists
//   module      what Python calls
//
// All files are compiled as one text (labkit/devices/library.py), so no two may use the same name
// for different things. Loading the library only registers kernels, which nothing reaches while
// there are no devices: `install` makes them.
#pragma once
#include <c10/core/Device.h>

#include <atomic>
#include <string>

namespace pretend {
constexpr auto kPretend = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kMostDevices = 64;

extern c10::DeviceIndex num_devices;          // how many devices this process sees
extern thread_local c10::DeviceIndex current; // as cudaGetDevice: each thread has its own
extern std::atomic<bool> initialized;         // as torch.cuda.is_initialized: chosen, or used

std::string name(c10::DeviceIndex device); // "pretend:0"

void prefer_host_kernels(); // once, when the library is loaded: see fallback.cpp
void install_memory();      // makes this torch's memory of the device, and counts from now on
void install_device();      // makes this torch's accelerator
} // namespace pretend
