#include "client/runtime/cuda/timer.h"

#include "proto/base/status_macros.h"

namespace kiln::cuda {
namespace {

constexpr char kWhat[] = "cannot time a kernel";

}  // namespace

absl::StatusOr<std::unique_ptr<LaunchTimer>> LaunchTimer::Make(const Gpu& gpu, Stream stream) {
  const Driver& driver = gpu.driver;
  const RelaxedCaptureScope relaxed(driver);
  std::unique_ptr<LaunchTimer> timer(new LaunchTimer(gpu, stream));
  KILN_RETURN_IF_ERROR(driver.Check(driver.make_event(&timer->begin_, 0), kWhat));
  KILN_RETURN_IF_ERROR(driver.Check(driver.make_event(&timer->end_, 0), kWhat));
  Device device = 0;
  KILN_RETURN_IF_ERROR(driver.Check(driver.device_get(&device, gpu.ordinal), kWhat));
  KILN_ASSIGN_OR_RETURN(const int cache_bytes, driver.Get(Attribute::kL2Bytes, device));
  timer->others_bytes_ = 2 * static_cast<size_t>(cache_bytes);
  KILN_ASSIGN_OR_RETURN(timer->others_,
                        gpu.Allocate(static_cast<int64_t>(timer->others_bytes_), stream));
  return timer;
}

LaunchTimer::~LaunchTimer() {
  const RelaxedCaptureScope relaxed(gpu_.driver);
  if (others_ != 0) gpu_.driver.free_async(others_, stream_);
  if (begin_ != nullptr) gpu_.driver.destroy_event(begin_);
  if (end_ != nullptr) gpu_.driver.destroy_event(end_);
}

absl::StatusOr<double> LaunchTimer::Time(absl::FunctionRef<absl::Status()> launch) {
  const Driver& driver = gpu_.driver;
  const RelaxedCaptureScope relaxed(driver);
  // While the GPU writes, the host has time to put the rest into the stream.
  KILN_RETURN_IF_ERROR(driver.Check(driver.fill_bytes(others_, 0, others_bytes_, stream_), kWhat));
  KILN_RETURN_IF_ERROR(driver.Check(driver.record_event(begin_, stream_), kWhat));
  KILN_RETURN_IF_ERROR(launch());
  KILN_RETURN_IF_ERROR(driver.Check(driver.record_event(end_, stream_), kWhat));
  KILN_RETURN_IF_ERROR(driver.Check(driver.synchronize_stream(stream_), kWhat));
  float milliseconds = 0;
  KILN_RETURN_IF_ERROR(driver.Check(driver.elapsed_time(&milliseconds, begin_, end_), kWhat));
  return milliseconds * 1e3;
}

}  // namespace kiln::cuda
