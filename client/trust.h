// Whose signatures are good: the public keys of servers, given by the user or kept from the first
// time, as ssh does in known_hosts.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "kiln/client.h"
#include "proto/base/digest.h"

namespace kiln {

// The keys that count for a server are, in this order:
// - those of the option public_key or KILN_PUBLIC_KEY, comma-separated, else those that stand in
// the
//   token file (client/token_file.h), for every server;
// - those that the file of known servers has for it. A server met for the first time is added, one
//   of this machine aside, unless the file was named by the option known_servers or
//   KILN_KNOWN_SERVERS: whoever takes such a port can read the file as well;
// - for a server of this machine, the one that stands in the token file that it left for this
// user's
//   programs, else the one that it shows: who takes the port later cannot write that file.
// Lines of the file are "HOST:PORT ed25519:BASE64"; several for one server are all good. Its place
// is $XDG_CONFIG_HOME/kiln/known_servers, else ~/.config/kiln/known_servers. Thread-safe; other
// processes may add to the file meanwhile.
class Trust {
 public:
  // INVALID_ARGUMENT for a key that is none, or a bad line of the file.
  static absl::StatusOr<std::shared_ptr<Trust>> Load(const ClientOptions& options);

  // `public_key`: what the server shows, 32 bytes; empty for a server that signs nothing.
  // UNAUTHENTICATED where another one is known.
  absl::Status Introduce(absl::string_view server, absl::string_view public_key);

  // DATA_LOSS where a key is known for `server` and `signature` is empty or not made with it.
  // FAILED_PRECONDITION where the server was never introduced and no key is known.
  absl::Status Check(absl::string_view server, const Digest& key, const Digest& digest,
                     absl::string_view signature) const;

  // As Check, for artifacts that were kept from any of `servers`, which may be away; fine where no
  // key of theirs is known.
  absl::Status CheckKept(const std::vector<std::string>& servers, const Digest& key,
                         const Digest& digest, absl::string_view signature) const;

 private:
  using Keys = std::vector<std::string>;

  Trust() = default;
  absl::Status ReadFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status KeepFirst(const std::string& address, const std::string& public_key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null where none is known.
  const Keys* Known(const std::string& address) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  Keys given_;
  std::string given_by_;
  std::string path_;  // empty: nowhere to keep keys
  bool path_given_ = false;

  mutable absl::Mutex mu_;
  std::map<std::string, Keys> kept_ ABSL_GUARDED_BY(mu_);        // of the file
  std::map<std::string, Keys> introduced_ ABSL_GUARDED_BY(mu_);  // of this process; may be empty
  std::map<std::string, Keys> left_ ABSL_GUARDED_BY(mu_);        // of servers' token files
};

}  // namespace kiln
