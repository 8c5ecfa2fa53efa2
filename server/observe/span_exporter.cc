#include "server/observe/span_exporter.h"

#include <curl/curl.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/random/random.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/base/log.h"

namespace kiln::server {
namespace {

constexpr char kTracesPath[] = "/v1/traces";
constexpr size_t kMaxResponseBytes = 4096;

size_t KeepLittle(char* data, size_t size, size_t count, void* to) {
  auto& text = *static_cast<std::string*>(to);
  text.append(data, std::min(size * count, kMaxResponseBytes - text.size()));
  return size * count;
}

struct PostResult {
  bool delivered = false;
  bool worth_retrying = false;
  std::string drop_reason;
  std::string text;  // for the log
};

int AskWhetherToGiveUp(void* give_up, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return (*static_cast<const std::function<bool()>*>(give_up))() ? 1 : 0;
}

// One connection, kept between posts. Used by one thread.
class HttpPoster {
 public:
  // `give_up` is polled while a post is under way: about once a second, more often where data
  // flows.
  HttpPoster(std::string url, absl::Duration timeout, std::function<bool()> give_up)
      : url_(std::move(url)),
        timeout_(timeout),
        give_up_(std::move(give_up)),
        curl_(curl_easy_init()) {
    headers_ = curl_slist_append(headers_, "Content-Type: application/json");
    headers_ = curl_slist_append(headers_, "Expect:");
  }
  ~HttpPoster() {
    curl_slist_free_all(headers_);
    curl_easy_cleanup(curl_);
  }
  HttpPoster(const HttpPoster&) = delete;
  HttpPoster& operator=(const HttpPoster&) = delete;

  PostResult Post(const std::string& body) {
    if (curl_ == nullptr) return {.drop_reason = "unreachable", .text = "libcurl does not start"};
    std::string answer;
    curl_easy_reset(curl_);  // its connection stays
    curl_easy_setopt(curl_, CURLOPT_URL, url_.c_str());
    curl_easy_setopt(curl_, CURLOPT_HTTPHEADER, headers_);
    curl_easy_setopt(curl_, CURLOPT_POSTFIELDS, body.data());
    curl_easy_setopt(curl_, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    curl_easy_setopt(curl_, CURLOPT_TIMEOUT_MS,
                     static_cast<long>(timeout_ / absl::Milliseconds(1)));
    curl_easy_setopt(curl_, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl_, CURLOPT_PROXY, "");  // the endpoint is what was configured
    curl_easy_setopt(curl_, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl_, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl_, CURLOPT_XFERINFOFUNCTION, &AskWhetherToGiveUp);
    curl_easy_setopt(curl_, CURLOPT_XFERINFODATA, &give_up_);
    curl_easy_setopt(curl_, CURLOPT_WRITEFUNCTION, &KeepLittle);
    curl_easy_setopt(curl_, CURLOPT_WRITEDATA, &answer);
    CURLcode code = curl_easy_perform(curl_);
    if (code != CURLE_OK) {
      return {
          .worth_retrying = true, .drop_reason = "unreachable", .text = curl_easy_strerror(code)};
    }
    long status = 0;
    curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &status);
    if (status >= 200 && status < 300) return {.delivered = true};
    bool busy = status == 429 || status == 502 || status == 503 || status == 504;
    return {.worth_retrying = busy,
            .drop_reason = "refused",
            .text = absl::StrCat("HTTP ", status, " ", answer.substr(0, 200))};
  }

 private:
  const std::string url_;
  const absl::Duration timeout_;
  const std::function<bool()> give_up_;
  CURL* const curl_;
  curl_slist* headers_ = nullptr;
};

class SpanExporter final : public SpanSink {
 public:
  explicit SpanExporter(SpanExporterOptions options)
      : options_(std::move(options)),
        poster_(options_.endpoint, options_.request_timeout, [this] { return IsOver(); }) {
    thread_ = std::thread([this] { Run(); });
  }

  ~SpanExporter() override {
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
      stop_by_ = absl::Now() + options_.flush_limit;
    }
    thread_.join();
  }

  void Add(SpanRecord span) override {
    {
      absl::MutexLock lock(&mu_);
      if (queue_.size() < options_.max_queued_spans && !stopping_) {
        if (queue_.empty()) oldest_ = absl::Now();
        queue_.push_back(std::move(span));
        return;
      }
    }
    Dropped("queue_full", 1);
  }

  bool SampleNewTrace() override {
    thread_local absl::BitGen random;
    return options_.sample_ratio >= 1 || absl::Bernoulli(random, options_.sample_ratio);
  }

 private:
  void Run() {
    while (std::optional<std::vector<SpanRecord>> batch = NextBatch()) Send(*batch);
  }

  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_ || !queue_.empty(); }
  bool IsDue() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stopping_ || queue_.size() >= options_.max_batch_spans;
  }

  bool IsOver() {
    absl::MutexLock lock(&mu_);
    return stopping_ && absl::Now() >= stop_by_;
  }

  // Nothing once the exporter stops and the queue is empty or its time is over.
  std::optional<std::vector<SpanRecord>> NextBatch() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &SpanExporter::HasWork));
    mu_.AwaitWithDeadline(absl::Condition(this, &SpanExporter::IsDue),
                          oldest_ + options_.max_batch_age);
    if (stopping_ && (queue_.empty() || absl::Now() >= stop_by_)) {
      Dropped("unreachable", static_cast<int64_t>(queue_.size()));
      return std::nullopt;
    }
    size_t count = std::min(queue_.size(), options_.max_batch_spans);
    std::vector<SpanRecord> batch(std::make_move_iterator(queue_.begin()),
                                  std::make_move_iterator(queue_.begin() + count));
    queue_.erase(queue_.begin(), queue_.begin() + count);
    oldest_ = absl::Now();
    return batch;
  }

  // False where the exporter stops.
  bool Sleep(absl::Duration time) {
    absl::MutexLock lock(&mu_);
    return !mu_.AwaitWithTimeout(absl::Condition(&stopping_), time);
  }

  void Send(const std::vector<SpanRecord>& batch) {
    const std::string body = EncodeOtlpJson(options_.resource, batch);
    const auto spans = static_cast<int64_t>(batch.size());
    absl::Duration backoff = options_.first_backoff;
    for (int attempt = 0;; ++attempt) {
      PostResult result = poster_.Post(body);
      if (result.delivered) {
        failing_ = false;
        if (options_.on_exported) options_.on_exported(spans);
        return;
      }
      if (!std::exchange(failing_, true)) {
        Log(LogLevel::kWarning, "spans do not reach the trace collector",
            {{"endpoint", options_.endpoint}, {"why", result.text}});
      }
      if (IsOver() || !result.worth_retrying || attempt >= options_.max_retries ||
          !Sleep(backoff)) {
        return Dropped(result.drop_reason, spans);
      }
      backoff *= 2;
    }
  }

  void Dropped(absl::string_view reason, int64_t spans) {
    if (spans > 0 && options_.on_dropped) options_.on_dropped(reason, spans);
  }

  const SpanExporterOptions options_;
  absl::Mutex mu_;
  std::deque<SpanRecord> queue_ ABSL_GUARDED_BY(mu_);
  absl::Time oldest_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time stop_by_ ABSL_GUARDED_BY(mu_);
  // Of the thread.
  HttpPoster poster_;
  bool failing_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<SpanSink> StartSpanExporter(SpanExporterOptions options) {
  return std::make_unique<SpanExporter>(std::move(options));
}

absl::StatusOr<std::string> ParseOtlpEndpoint(absl::string_view text) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, "http://") && !absl::ConsumePrefix(&rest, "https://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' does not begin with http:// or https://"));
  }
  absl::string_view authority = rest.substr(0, rest.find('/'));
  bool odd = std::any_of(rest.begin(), rest.end(), [](unsigned char c) {
    return c <= ' ' || c >= 0x7F || c == '"' || c == '?' || c == '#';
  });
  if (authority.empty() || authority[0] == ':' || odd) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no address as http://127.0.0.1:4318 is"));
  }
  absl::string_view url = absl::StripSuffix(text, "/");
  if (absl::EndsWith(url, kTracesPath)) return std::string(url);
  return absl::StrCat(url, kTracesPath);
}

}  // namespace kiln::server
