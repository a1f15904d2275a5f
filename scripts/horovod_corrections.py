"""What we change in the source of Horovod 0.28.1 before it is built.

Why each correction is there: docs/decisions/0001-own-horovod-wheel.md.
"""

from __future__ import annotations

from typing import NamedTuple


class Correction(NamedTuple):
    """An edit of Horovod's source; one that takes several has its name several times.

    Attributes:
        name: In the wheel's notice, and in what `hetero-hvd doctor` says.
        path: File in the source distribution.
        anchor: Must occur exactly once in it.
        replacement: For the anchor.
    """

    name: str
    path: str
    anchor: str
    replacement: str


CORRECTIONS = (
    Correction(
        "close-gloo-contexts",
        "horovod/common/gloo/gloo_context.cc",
        "void GlooContext::Finalize() {\n  if (!enabled_) {\n    return;\n  }\n",
        "void GlooContext::Finalize() {\n",
    ),
    Correction(
        "init-failure-is-an-error",
        "horovod/common/operations.cc",
        "    global_gloo_context.Initialize(ParseGlooIface());\n",
        "    try {\n"
        "      global_gloo_context.Initialize(ParseGlooIface());\n"
        "      if (state.control_operation == LibType::GLOO) {\n"
        "        state.process_set_table.Initialize(global_gloo_context);\n"
        "      }\n"
        "    } catch (const std::exception& ex) {\n"
        '      LOG(WARNING) << "Horovod could not be initialized: " << ex.what();\n'
        "      state.process_set_table.Finalize(global_gloo_context, SHUT_DOWN_ERROR);\n"
        "      global_gloo_context.Finalize();\n"
        "      state.initialization_failed = true;\n"
        "      return;\n"
        "    }\n",
    ),
    Correction(
        "init-can-be-retried",
        "horovod/common/operations.cc",
        "    horovod_global.shut_down = false;\n    horovod_global.initialization_done = false;\n",
        "    horovod_global.shut_down = false;\n    horovod_global.initialization_done = false;\n"
        "    horovod_global.initialization_failed = false;\n",
    ),
    Correction(
        "process-sets-keep-the-interface",
        "horovod/common/gloo/gloo_context.cc",
        "  auto dev = CreateDevice(device_attr);\n\n  global_ctx = global_context.ctx;\n",
        "  device_attr.iface = global_context.gloo_iface_;\n"
        "  auto dev = CreateDevice(device_attr);\n\n  global_ctx = global_context.ctx;\n",
    ),
    Correction(
        "all-ranks-share-one-mesh",
        "horovod/common/gloo/gloo_context.cc",
        "  timeout_ = global_context.timeout_;\n  hostname_ = global_context.hostname_;\n",
        "  timeout_ = global_context.timeout_;\n  hostname_ = global_context.hostname_;\n"
        "  if (registered_ranks.empty()) {\n"
        "    ctx = global_context.ctx;\n"
        "    local_ctx = global_context.local_ctx;\n"
        "    cross_ctx = global_context.cross_ctx;\n"
        "    return;\n"
        "  }\n",
    ),
    Correction(
        "one-slot-hosts-share-one-mesh",
        "horovod/common/gloo/gloo_context.cc",
        "  cross_ctx = Rendezvous(HOROVOD_GLOO_CROSS_PREFIX + std::to_string(local_rank),\n"
        "                         rendezvous_addr_env, rendezvous_port,\n"
        "                         cross_rank, cross_size, dev, timeout_);\n",
        "  cross_ctx = cross_size == size ? ctx :\n"
        "              Rendezvous(HOROVOD_GLOO_CROSS_PREFIX + std::to_string(local_rank),\n"
        "                         rendezvous_addr_env, rendezvous_port,\n"
        "                         cross_rank, cross_size, dev, timeout_);\n",
    ),
    Correction(
        "stall-inspector-knows-ranks",
        "horovod/common/gloo/gloo_controller.cc",
        "global_ranks_.reserve(size_);",
        "global_ranks_.resize(size_);",
    ),
    Correction(
        "timeline-writer-sleeps",
        "horovod/common/timeline.cc",
        "    // Allow scheduler to schedule other work for this core.\n"
        "    std::this_thread::yield();\n",
        "    std::this_thread::sleep_for(std::chrono::milliseconds(10));\n",
    ),
    Correction(
        "a-lost-peer-ends-every-wait",
        "third_party/gloo/gloo/transport/tcp/pair.cc",
        "      op.buf->signalException(ex);\n"
        "    }\n"
        "  }\n"
        "\n"
        "  // Loop through pending send operations.\n",
        "      op.buf->signalException(ex);\n"
        "    }\n"
        "    NonOwningPtr<UnboundBuffer> sent(op.ubuf);\n"
        "    if (sent) {\n"
        "      sent->signalException(ex);\n"
        "    }\n"
        "  }\n"
        "  NonOwningPtr<UnboundBuffer> half_received(rx_.ubuf);\n"
        "  if (half_received) {\n"
        "    half_received->signalException(ex);\n"
        "  }\n"
        "\n"
        "  // Loop through pending send operations.\n",
    ),
    Correction(
        "idle-cycles-wait-for-tensors",
        "horovod/common/tensor_queue.h",
        "  void RemoveJoinTensor();\n\nprotected:\n",
        "  void RemoveJoinTensor();\n\n"
        "  // Return when there are tensors to negotiate, at the latest after this time.\n"
        "  void AwaitTensors(std::chrono::milliseconds longest) {\n"
        "    std::unique_lock<std::mutex> guard(mutex_);\n"
        "    auto any = [this] { return !tensor_table_.empty() || !message_queue_.empty(); };\n"
        "    if (!any() && added_.wait_for(guard, longest, any)) {\n"
        "      guard.unlock();\n"
        "      // For those that come together, as otherwise one waits for the next cycle.\n"
        "      std::this_thread::sleep_for(std::chrono::microseconds(100));\n"
        "    }\n"
        "  }\n\n"
        "protected:\n"
        "  std::condition_variable added_;\n\n",
    ),
    Correction(
        "idle-cycles-wait-for-tensors",
        "horovod/common/tensor_queue.h",
        "#include <iostream>\n#include <mutex>\n",
        "#include <chrono>\n#include <condition_variable>\n#include <iostream>\n#include <mutex>\n"
        "#include <thread>\n",
    ),
    Correction(
        "idle-cycles-wait-for-tensors",
        "horovod/common/tensor_queue.cc",
        "  message_queue_.push(std::move(message));\n  return Status::OK();\n",
        "  message_queue_.push(std::move(message));\n"
        "  added_.notify_all();\n"
        "  return Status::OK();\n",
    ),
    Correction(
        "idle-cycles-wait-for-tensors",
        "horovod/common/tensor_queue.cc",
        "    message_queue_.push(std::move(messages[i]));\n  }\n  return Status::OK();\n",
        "    message_queue_.push(std::move(messages[i]));\n  }\n"
        "  added_.notify_all();\n"
        "  return Status::OK();\n",
    ),
    Correction(
        "idle-cycles-wait-for-tensors",
        "horovod/common/operations.cc",
        "    std::this_thread::sleep_for(sleep_duration);\n  }\n",
        "    std::this_thread::sleep_for(sleep_duration);\n  }\n"
        "  if (!state.shut_down && state.process_set_table.Ids().size() == 1) {\n"
        "    state.process_set_table.Get(0).tensor_queue.AwaitTensors(\n"
        "        std::chrono::milliseconds(20));\n"
        "  }\n",
    ),
    Correction(
        "waits-are-woken",
        "horovod/torch/handle_manager.h",
        "  bool PollHandle(int handle);\n",
        "  bool PollHandle(int handle);\n"
        "  // Whether it is done, at once or within this time.\n"
        "  bool AwaitHandle(int handle, std::chrono::milliseconds longest);\n",
    ),
    Correction(
        "waits-are-woken",
        "horovod/torch/handle_manager.h",
        "  std::mutex mutex_;\n",
        "  std::mutex mutex_;\n  std::condition_variable changed_;\n",
    ),
    Correction(
        "waits-are-woken",
        "horovod/torch/handle_manager.h",
        "#include <atomic>\n",
        "#include <atomic>\n#include <chrono>\n#include <condition_variable>\n",
    ),
    Correction(
        "waits-are-woken",
        "horovod/torch/handle_manager.cc",
        "  results_[handle] = std::make_shared<Status>(status);\n",
        "  results_[handle] = std::make_shared<Status>(status);\n  changed_.notify_all();\n",
    ),
    Correction(
        "waits-are-woken",
        "horovod/torch/handle_manager.cc",
        "bool HandleManager::PollHandle(int handle) {\n",
        "bool HandleManager::AwaitHandle(int handle, std::chrono::milliseconds longest) {\n"
        "  std::unique_lock<std::mutex> guard(mutex_);\n"
        "  return changed_.wait_for(guard, longest, [this, handle] {\n"
        "    auto found = results_.find(handle);\n"
        "    return found == results_.end() || found->second != nullptr;\n"
        "  });\n"
        "}\n"
        "\n"
        "bool HandleManager::PollHandle(int handle) {\n",
    ),
    Correction(
        "waits-are-woken",
        "horovod/torch/handle_manager.cc",
        "  results_.clear();\n",
        "  results_.clear();\n  changed_.notify_all();\n",
    ),
    Correction(
        "waits-are-woken",
        "horovod/torch/mpi_ops_v2.cc",
        "    if (handle_manager.PollHandle(handle)) break;\n"
        "    {\n"
        "      py::gil_scoped_release release_python_gil;\n"
        "      std::this_thread::yield();\n"
        "    }\n",
        "    {\n"
        "      py::gil_scoped_release release_python_gil;\n"
        "      if (handle_manager.AwaitHandle(handle, std::chrono::milliseconds(100))) break;\n"
        "    }\n"
        "    if (PyErr_CheckSignals() != 0) throw py::error_already_set();\n",
    ),
    Correction(
        "small-sums-are-direct",
        "third_party/gloo/gloo/allreduce.cc",
        "// Forward declaration of bcube algorithm implementation.\n",
        "// Every rank sends all it has to all others, and each reduces in the order of ranks: of\n"
        "// something small, one round of messages is faster than the many rounds of the ring.\n"
        "void direct(\n"
        "    const detail::AllreduceOptionsImpl& opts,\n"
        "    ReduceRangeFunction reduceInputs,\n"
        "    BroadcastRangeFunction broadcastOutputs) {\n"
        "  const auto& context = opts.context;\n"
        "  const auto slot = Slot::build(kAllreduceSlotPrefix, opts.tag);\n"
        "  const size_t numBytes = opts.elements * opts.elementSize;\n"
        "  uint8_t* result = static_cast<uint8_t*>(opts.out[0]->ptr);\n"
        "  std::unique_ptr<uint8_t[]> all(new uint8_t[numBytes * context->size]);\n"
        "  auto buffer = context->createUnboundBuffer(all.get(), numBytes * context->size);\n"
        "  reduceInputs(0, numBytes);\n"
        "  memcpy(all.get() + context->rank * numBytes, result, numBytes);\n"
        "  for (int i = 1; i < context->size; i++) {\n"
        "    const int to = (context->rank + i) % context->size;\n"
        "    const int from = (context->rank + context->size - i) % context->size;\n"
        "    buffer->recv(from, slot, from * numBytes, numBytes);\n"
        "    buffer->send(to, slot, context->rank * numBytes, numBytes);\n"
        "  }\n"
        "  for (int i = 1; i < context->size; i++) {\n"
        "    buffer->waitSend(opts.timeout);\n"
        "    buffer->waitRecv(opts.timeout);\n"
        "  }\n"
        "  memcpy(result, all.get(), numBytes);\n"
        "  for (int i = 1; i < context->size; i++) {\n"
        "    opts.reduce(result, result, all.get() + i * numBytes, opts.elements);\n"
        "  }\n"
        "  broadcastOutputs(0, numBytes);\n"
        "}\n"
        "\n"
        "// Forward declaration of bcube algorithm implementation.\n",
    ),
    Correction(
        "small-sums-are-direct",
        "third_party/gloo/gloo/allreduce.cc",
        "    case detail::AllreduceOptionsImpl::UNSPECIFIED:\n",
        "    case detail::AllreduceOptionsImpl::UNSPECIFIED:\n"
        "      if (context->size <= 32 && totalBytes * context->size <= 65536) {\n"
        "        direct(opts, reduceInputs, broadcastOutputs);\n"
        "        break;\n"
        "      }\n"
        "      // Or else as\n",
    ),
    Correction(
        "no-distutils",
        "horovod/runner/js_run.py",
        "from distutils.spawn import find_executable\n",
        "from shutil import which as find_executable\n",
    ),
    Correction(
        "no-distutils",
        "horovod/torch/CMakeLists.txt",
        "from distutils.sysconfig import get_python_inc; print(get_python_inc())",
        "import sysconfig; print(sysconfig.get_path('include'))",
    ),
)
